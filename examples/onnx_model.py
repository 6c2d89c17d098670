"""Export a model to ONNX with PyTorch alone, then generate from the file, its own first layers drafting beside a suffix automaton."""

import tempfile
from pathlib import Path
from typing import Any

import torch

import flexspec
from flexspec.models import load_model


class Logits(torch.nn.Module):
    """What is exported: token ids and an attention mask in, logits out; no cache, for flexspec brings its own."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        return self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits


def export(model: str, folder: Path) -> Path:
    """Write `model.onnx`, and beside it what the graph can't say: the tokenizer, and in config.json which tokens end a text."""
    loaded: Any = load_model(model)
    names, example = ["input_ids", "attention_mask"], torch.ones(2, 8, dtype=torch.long)
    path = folder / "model.onnx"
    torch.onnx.export(
        Logits(loaded.module).eval(),
        (example, torch.ones_like(example)),
        path,
        dynamo=False,  # the exporter that needs no further package; with onnxscript, dynamo=True does as well
        opset_version=17,
        input_names=names,
        output_names=["logits"],
        dynamic_axes={name: {0: "batch", 1: "length"} for name in names},
    )
    loaded.module.config.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return path


def main(model: str = "smollm2-135m", layers: int = 10) -> list[flexspec.Output]:
    with tempfile.TemporaryDirectory() as folder:
        path = export(model, Path(folder))
        llm = flexspec.compile(path, ssms=["suffix", f"prune:{layers}"])
        outputs = llm.generate(["The capital of France is", "def fibonacci(n):"], flexspec.SamplingParams(max_tokens=48))
        for output in outputs:
            print(f"{output.text}\n  [{output.finish_reason}, {output.stats.tokens_per_step:.2f} tokens a step]\n")
    return outputs


if __name__ == "__main__":
    main()
