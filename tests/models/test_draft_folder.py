"""Draft models in folders: what is saved comes back, the LLM stays as it is, and what does not fit it is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from flexspec.errors import UsageError
from flexspec.models.draft_folder import is_draft_folder, load_draft, save_draft
from flexspec.models.load import load_model
from flexspec.models.loaded_model import LoadedModel
from flexspec.tuning.config import DraftModelSettings
from flexspec.tuning.draft_models import Member, new_member
from tiny_models import random_prompt, tiny, tiny_tokenizer
from tuning_cases import loaded, member, same, weights_of

IDS = torch.tensor([random_prompt(11)])
STATES = ("model.layers.1", "model.norm")


def tuned(made: Member) -> Member:
    """With other weights, which bfloat16 holds exactly."""
    torch.manual_seed(8)
    for parameter in made.objective.module.parameters():
        if parameter.requires_grad:
            parameter.data = (parameter.data + 0.1 * torch.randn_like(parameter)).bfloat16().float()
    return made


def logits_of(module: torch.nn.Module, kind: str) -> torch.Tensor:
    torch.manual_seed(2)
    with torch.no_grad():
        if kind == "ssm":
            return module(IDS).logits
        return module(IDS, torch.arange(IDS.shape[1])[None], torch.randn(1, IDS.shape[1], module.head_config.feature_size))


def saved(folder: Path, kind: str, *, trimmed: bool) -> Member:
    made = tuned(member(kind, states=STATES) if trimmed else whole_member(kind))
    save_draft(folder, made.description, made.objective.weights(), made.objective.token_ids if trimmed else None)
    return made


def whole_member(kind: str) -> Member:
    settings = DraftModelSettings(kind=kind)  # type: ignore[arg-type]
    return new_member(loaded(), settings, token_ids=torch.arange(288), states=STATES, seed=0)


@pytest.mark.parametrize("trimmed", [True, False])
@pytest.mark.parametrize("kind", ["head", "ssm"])
def test_what_is_saved_comes_back(tmp_path: Path, kind: str, trimmed: bool) -> None:
    before = weights_of(loaded().module)
    made = saved(tmp_path / "draft", kind, trimmed=trimmed)
    assert is_draft_folder(tmp_path / "draft") and is_draft_folder(str(tmp_path / "draft")) and not is_draft_folder(tmp_path)
    assert sorted(path.name for path in (tmp_path / "draft").iterdir()) == ["drafter.json", "weights.safetensors"]
    draft = load_draft(tmp_path / "draft", loaded(), name="it")
    assert draft.loaded.name == "it" and draft.states == (STATES if kind == "head" else ())
    assert draft.loaded.vocab_size == (40 if trimmed else 288) and (draft.token_ids is None) != trimmed
    expected = logits_of(made.objective.module, kind)
    if trimmed and kind == "ssm":  # in training the matrix is whole
        expected = expected[..., made.objective.token_ids]
    assert torch.equal(logits_of(draft.loaded.module, kind), expected)
    assert draft.token_ids is None or torch.equal(draft.token_ids, made.objective.token_ids)

    whole = load_draft(tmp_path / "draft", loaded(), name="it", whole=True)
    columns = made.objective.token_ids if trimmed else torch.arange(288)
    assert (whole.token_ids, whole.loaded.vocab_size) == (None, 288)
    assert (logits_of(whole.loaded.module, kind)[..., columns] - expected).abs().max() < 1e-5
    assert same(before, weights_of(loaded().module)), "the LLM's weights are never changed"


def test_embedding_and_output_matrix_are_the_llm_s(tmp_path: Path) -> None:
    llm = loaded().module
    for kind in ("head", "ssm"):
        saved(tmp_path / kind, kind, trimmed=False)
        assert not any("embed" in name or "lm_head" in name for name in load_file(tmp_path / kind / "weights.safetensors"))
        module: Any = load_draft(tmp_path / kind, loaded(), name="it").loaded.module
        assert module.embed_tokens.weight.data_ptr() == llm.get_input_embeddings().weight.data_ptr() if kind == "head" else True
        assert module.lm_head.weight.data_ptr() == llm.get_output_embeddings().weight.data_ptr()


def test_another_one_takes_its_place(tmp_path: Path) -> None:
    saved(tmp_path, "head", trimmed=False)
    made = saved(tmp_path, "ssm", trimmed=True)
    assert torch.equal(
        logits_of(load_draft(tmp_path, loaded(), name="it").loaded.module, "ssm"),
        logits_of(made.objective.module, "ssm")[..., made.objective.token_ids],
    )


def test_an_interrupted_write_is_no_draft_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, "head", trimmed=False)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("flexspec.models.draft_folder.write_text_whole", interrupted)
    with pytest.raises(KeyboardInterrupt):
        saved(tmp_path, "ssm", trimmed=False)
    assert not is_draft_folder(tmp_path), "weights of one and the description of another"


def other(**changes: Any) -> LoadedModel:
    return load_model(tiny("llama", **({"layers": 4} | changes)), tokenizer=tiny_tokenizer())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 48}, "hidden_size=32, and LlamaForCausalLM has hidden_size=48: give a draft model that was tuned to this one"),
        ({"layers": 3}, "layers=4, and LlamaForCausalLM has layers=3"),
        ({"vocab": 300}, "vocab_size=288, and LlamaForCausalLM has vocab_size=300"),
    ],
)
def test_a_model_of_another_form(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    saved(tmp_path, "head", trimmed=False)
    with pytest.raises(UsageError, match=f"draft model it was made for a model with {message}"):
        load_draft(tmp_path, other(**changes), name="it")


def test_tokens_of_other_names(tmp_path: Path) -> None:
    saved(tmp_path, "head", trimmed=False)
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["<new>"])
    with pytest.raises(UsageError, match="draft model it was made for a model with other tokens, and LlamaForCausalLM has these: give"):
        load_draft(tmp_path, load_model(tiny("llama", layers=4), tokenizer=tokenizer), name="it")  # type: ignore[arg-type]
    assert load_draft(tmp_path, load_model(tiny("llama", layers=4)), name="it"), "a module has no tokenizer to compare"


def described(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = json.loads((folder / "drafter.json").read_text())
        change(content)
        (folder / "drafter.json").write_text(json.dumps(content))

    return damage


def stored(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / "weights.safetensors")
        change(tensors)
        save_file(tensors, folder / "weights.safetensors")

    return damage


READ, FIT = "can't be read .*: give a folder that flexspec tune wrote", "its weights do not fit its description .*; make it again"


@pytest.mark.parametrize(
    ("kind", "damage", "message"),
    [
        ("head", lambda folder: (folder / "drafter.json").write_text("{"), READ),
        ("head", lambda folder: (folder / "drafter.json").write_text("[1]"), READ),
        ("head", lambda folder: (folder / "weights.safetensors").unlink(), READ),
        ("head", lambda folder: (folder / "weights.safetensors").write_bytes(b"x" * 40), READ),
        ("head", described(lambda content: content.update(version=2)), "is of version 2, and this flexspec reads version 1: make it again"),
        ("head", described(lambda content: content.pop("version")), READ),
        ("head", described(lambda content: content.update(more=1)), READ),
        ("head", described(lambda content: content.update(llm=3)), READ),
        ("head", described(lambda content: content.update(kind="ssm")), READ),
        ("head", described(lambda content: content.update(head=None)), READ),
        ("head", described(lambda content: content["head"].pop("states")), READ),
        ("head", described(lambda content: content["head"].update(hidden_size="x")), FIT),
        ("head", described(lambda content: content["head"].update(num_heads=8)), FIT),
        ("head", described(lambda content: content["llm"].clear()), "made for a model with vocab_size=None"),
        ("head", stored(lambda tensors: tensors.pop("join.weight")), FIT),
        ("head", stored(lambda tensors: tensors.update({"layer.other.weight": torch.zeros(3)})), FIT),
        ("head", stored(lambda tensors: tensors.update({"join.weight": torch.zeros(3, 3)})), FIT),
        ("head", stored(lambda tensors: tensors.update(token_ids=tensors["token_ids"].flip(0))), FIT),
        ("head", stored(lambda tensors: tensors.update(token_ids=tensors["token_ids"] + 100)), FIT),
        ("head", stored(lambda tensors: tensors.update(token_ids=tensors["token_ids"][:0])), FIT),
        ("ssm", described(lambda content: content.update(layers=[0, 9])), FIT),
        ("ssm", described(lambda content: content.update(layers=[-1, 0])), FIT),
        ("ssm", described(lambda content: content.update(layers=["a", "b"])), FIT),
        ("ssm", described(lambda content: content.update(layers=[])), READ),
        ("ssm", described(lambda content: content.update(layers=[0])), FIT),
        ("ssm", stored(lambda tensors: tensors.pop("model.norm.weight")), FIT),
    ],
)
def test_damaged_folders(tmp_path: Path, kind: str, damage: Callable[[Path], object], message: str) -> None:
    saved(tmp_path, kind, trimmed=True)
    damage(tmp_path)
    with pytest.raises(UsageError, match=message):
        load_draft(tmp_path, loaded(), name="it")
