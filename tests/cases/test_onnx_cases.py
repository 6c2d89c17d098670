"""Decoders as many exporters write them: logits, token trees and greedy text are those of onnxruntime and of the PyTorch models.

The files are not part of flexspec; where their folder is not beside the repository, these tests are skipped, and what is left are the
operators and forms of `tests/ir/onnx` and the exports of `tests/cases/test_onnx_exports.py`. `onnx_greedy_tokens.jsonl` is what
onnxruntime made of these files, a token at a time, with its own cache where a file has one.
"""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from compile_once import compiled
from flexspec import LLM, SamplingParams
from flexspec.cli.main import main
from flexspec.codegen.batch import Batch
from flexspec.codegen.compiled_model import CompiledModel
from flexspec.codegen.kv_storage import KVStorage

FOLDER = Path(__file__).parents[3] / "shared" / "cases" / "onnx"
RECORDED = [json.loads(line) for line in (Path(__file__).parent / "onnx_greedy_tokens.jsonl").read_text().splitlines()]
GREEDY = {case: group for group in RECORDED for case in group["cases"]}
# Together: attention written out with ALiBi, and grouped attention with its own cache, rotary embedding and positions, quantised products.
# `test_onnx_exports.py` and `tests/ir/onnx` have the rest.
QUICK = ("dyn_bloom_am", "genai_llama_int4")
SLOTS = 64
HALF, SINGLE = 2e-2, 1e-4

REFUSED = {
    "bad_bert_mlm": r"operator MatMul \(node '\w+'\): its tokens see later ones, as an encoder's do",
    "bad_cnn": r"not supported, with their nodes: ai.onnx::Conv \(node_Conv_16, node_conv2d_1\); ai.onnx::MaxPool \(node_max_pool2d\)",
    "bad_cycle": "the graph has a cycle: Add 'node_linear_1' reads 'linear_3', which depends on it",
    "bad_dangling_input": "nothing makes 'linear_1', read by Reshape 'node_view_2'",
    "bad_empty": "holds no graph",
    "bad_external_escape": "'m.lm_head.weight' is said to be in '../../../../etc/hostname', outside the model's folder",
    "bad_missing_external": "'m.lm_head.weight' is in 'model.onnx.data', which is missing",
    "bad_not_onnx": "is not an ONNX file, is damaged or cut short",
    "bad_truncated_half": "is not an ONNX file, is damaged or cut short",
    "bad_unknown_op": r"not supported, with their nodes: com.example.custom::SecretRelu \(node_relu\)",
    "bad_weight_shape": r"operator MatMul \(node 'node_MatMul_64'\).*\[3, 7, 64\].*\[72, 64\]",
}

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"the exporters' files are not there: {FOLDER.name} beside the repository")


@pytest.fixture(scope="module", params=[pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in sorted(GREEDY)])
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@cache
def plain(name: str) -> LLM:
    return compiled(FOLDER / name / "model.onnx", [], dtype="float32", max_len=120)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One request of a pass: tokens at positions, after a cache [layers, heads, past, size] of keys and one of values."""

    ids: Any
    positions: Any
    past: tuple[Any, Any] | None = None


def logits_of(model: CompiledModel, rows: list[Row]) -> list[torch.Tensor]:
    """Of all tokens of each row, which share one pass."""
    kv = KVStorage(model.kv_shape, num_blocks=len(rows), block_size=SLOTS)
    starts = []
    for place, row in enumerate(rows):
        starts.append(0 if row.past is None else row.past[0].shape[2])
        for cache_, past in zip((kv.keys, kv.values), row.past or (), strict=False):
            cache_[:, place * SLOTS : place * SLOTS + starts[-1], :, : past.shape[3]] = torch.from_numpy(past).transpose(1, 2)
    lengths = [len(row.ids) for row in rows]
    slots = np.concatenate([start + np.arange(length, dtype=np.int32) for start, length in zip(starts, lengths, strict=True)])
    batch = Batch(
        token_ids=np.concatenate([row.ids for row in rows]).astype(np.int64),
        positions=np.concatenate([row.positions for row in rows]).astype(np.int64),
        request_rows=np.repeat(np.arange(len(rows), dtype=np.int32), lengths),
        slots=slots.astype(np.int32),
        context_lens=(slots + 1).astype(np.int32),
        tail_starts=np.zeros(len(rows), dtype=np.int32),
        tail_bits=np.zeros((len(slots), 0), dtype=np.int32),
        block_tables=np.arange(len(rows), dtype=np.int32)[:, np.newaxis],
        output_rows=np.arange(len(slots), dtype=np.int32),
    )
    return list(model.forward(batch, kv).clone().split(lengths))


def rows_of(name: str, recorded: Any, run: str) -> tuple[list[Row], list[np.ndarray]]:
    """The requests of one run of onnxruntime, without its padding, and their logits."""
    given = {key.removeprefix(f"{run}/in/"): recorded[key] for key in recorded if key.startswith(f"{run}/in/")}
    exact = f"{run}/out/logits_dequant_fp32"
    logits = recorded[exact if exact in recorded else f"{run}/out/logits"].astype(np.float32)
    # `key` stands in `past_key_values` as well.
    keys, values = (
        sorted(key for key in given if "past" in key and key.endswith(ends)) for ends in (("key", ".keys"), ("value", ".values"))
    )
    rows, wanted = [], []
    for place, ids in enumerate(given["input_ids"]):
        valid = np.flatnonzero(recorded["pad/valid"][place]) if run == "pad" else np.arange(len(ids))
        past = None if not keys else tuple(np.stack([given[one][place] for one in names]).astype(np.float32) for names in (keys, values))
        if "position_ids" in given:
            positions = given["position_ids"][place][valid]
        elif "gpt2" in name:
            positions = valid  # these count padding as well
        else:
            positions = np.arange(len(valid)) + (0 if past is None else past[0].shape[2])
        rows.append(Row(ids=ids[valid], positions=positions, past=past))  # type: ignore[arg-type]
        wanted.append(logits[place][valid])
    return rows, wanted


def difference(got: torch.Tensor, wanted: np.ndarray) -> float:
    """Relative to the largest logit."""
    return float((got - torch.from_numpy(wanted)).abs().max() / np.abs(wanted).max())


def test_logits_are_onnxruntimes(case: str) -> None:
    """Those of whole sequences, of batches, after a cache that onnxruntime was given, and of rows beside padding."""
    recorded, tolerance = np.load(FOLDER / case / "ref.npz"), HALF if "fp16" in case else SINGLE
    model = plain(case).plan.llm.model
    for run in sorted({key.split("/")[0] for key in recorded}):
        rows, wanted = rows_of(case, recorded, run)
        for got, logits in zip(logits_of(model, rows), wanted, strict=True):
            assert difference(got, logits) < tolerance, run
    # Requests of three lengths in one pass.
    rows, wanted = rows_of(case, recorded, "case1")
    ragged = [Row(ids=row.ids[:n], positions=row.positions[:n]) for row, n in zip(rows, (12, 1, 7), strict=True)]
    for got, row, logits in zip(logits_of(model, ragged), ragged, wanted, strict=True):
        assert difference(got, logits[: len(row.ids)]) < tolerance


def test_a_token_tree_is_its_paths(case: str) -> None:
    """Every node of a tree has the logits that PyTorch computes on the node's own path; without PyTorch's, those of that path alone."""
    about = json.loads((FOLDER / case / "meta.json").read_text())["hf"]
    file = FOLDER / about.get("hf_dir", "") / "tree_ref.npz"
    is_same = file.is_file() and not ("nbits" in case or "int4" in case)  # quantised weights are others than PyTorch's
    tree, model = np.load(file if is_same else FOLDER / "hf" / "llama" / "tree_ref.npz"), plain(case).plan.llm.model
    wanted = tree["logits"] if is_same else path_logits(model, tree)
    assert difference(tree_logits(model, tree), wanted) < (HALF if "fp16" in case else SINGLE)


def tree_logits(model: CompiledModel, tree: Any) -> torch.Tensor:
    prefix, nodes = len(tree["prefix_ids"]), len(tree["node_ids"])
    kv = KVStorage(model.kv_shape, num_blocks=1, block_size=SLOTS)
    first = np.arange(prefix, dtype=np.int32)
    whole = {"block_tables": np.zeros((1, 1), dtype=np.int32), "tail_starts": np.full(1, prefix, dtype=np.int32)}
    model.forward(
        Batch(
            token_ids=tree["prefix_ids"].astype(np.int64),
            positions=first.astype(np.int64),
            request_rows=np.zeros(prefix, dtype=np.int32),
            slots=first,
            context_lens=first + 1,
            tail_bits=np.zeros((prefix, 0), dtype=np.int32),
            output_rows=first[:0],
            **whole,
        ),
        kv,
    )
    bits = np.zeros((nodes, 1), dtype=np.int32)
    for node, parent in enumerate(tree["parents"]):
        bits[node] = (bits[parent] if parent >= 0 else 0) | (1 << node)
    batch = Batch(
        token_ids=tree["node_ids"].astype(np.int64),
        positions=tree["position_ids"].astype(np.int64),
        request_rows=np.zeros(nodes, dtype=np.int32),
        slots=np.arange(prefix, prefix + nodes, dtype=np.int32),
        context_lens=np.full(nodes, prefix, dtype=np.int32),
        tail_bits=bits,
        output_rows=np.arange(nodes, dtype=np.int32),
        **whole,
    )
    return model.forward(batch, kv).clone()


def path_logits(model: CompiledModel, tree: Any) -> np.ndarray:
    last = []
    for node in range(len(tree["node_ids"])):
        path = [node]
        while tree["parents"][path[0]] >= 0:
            path.insert(0, tree["parents"][path[0]])
        ids = np.concatenate([tree["prefix_ids"], tree["node_ids"][path]])
        last.append(logits_of(model, [Row(ids=ids, positions=np.arange(len(ids)))])[0][-1].numpy())
    return np.stack(last)


def test_greedy_text_is_onnxruntimes(case: str, time_is_free: None) -> None:
    group = GREEDY[case]
    texts, length = group["tokens"], len(group["tokens"][0])
    assert len({token for text in texts for token in text}) >= 15
    params = SamplingParams(max_tokens=length, temperature=0, ignore_eos=True)
    drafting = compiled(FOLDER / case / "model.onnx", ["suffix", "prune:1"], dtype="float32", max_len=120)
    for llm in (plain(case), drafting):
        outputs = llm.generate(group["prompts"], params)
        assert [output.token_ids for output in outputs] == texts
    accepted, drafted = (sum(getattr(output.stats, what) for output in outputs) for what in ("accepted", "drafted"))
    assert 0 < accepted < drafted


@pytest.mark.parametrize("name", REFUSED)
def test_damaged_and_foreign_files_are_refused_in_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(FOLDER / name / "model.onnx"), "--prompt", "a"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("flexspec: ") and shown.err.count("\n") == 1
    assert re.search(REFUSED[name], shown.err)
