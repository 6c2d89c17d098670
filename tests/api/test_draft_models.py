"""Tuned draft models in a compiled runtime: the text is that of plain decoding, with drafts that are accepted and drafts that are not."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flexspec
from flexspec.api.draft_models import hidden_states_for, load_if_tuned, load_tuned
from flexspec.api.engine import make_engine
from flexspec.config import SamplingParams
from flexspec.errors import UsageError
from flexspec.ir.submodule_outputs import recorded_outputs
from flexspec.models.draft_folder import save_draft
from flexspec.models.load import load_model
from flexspec.runtime.drafters.base import DraftRequest
from flexspec.runtime.sampling import RequestSampler
from flexspec.tree_shape import TreeSpec
from flexspec.tuning.config import DraftModelSettings, TrainingSettings
from flexspec.tuning.corpus import Text
from flexspec.tuning.draft_models import Member, new_member
from flexspec.tuning.draft_vocabulary import commonest_tokens
from flexspec.tuning.trainer import Trainer, TrainingData
from tiny_models import random_prompt, tiny
from tuning_cases import MemoryStates

MODULE = tiny("llama", layers=2)
LLM = load_model(MODULE)
PROMPTS = [random_prompt(6, seed=seed) for seed in range(40)]
ANSWER = 30
LOW, HIGH, NORM = "model.layers.0", "model.layers.1", "model.norm"
DRAFTS: dict[str, tuple[str, tuple[str, ...], int | None]] = {
    "low": ("head", (LOW, NORM), None),
    "high": ("head", (HIGH, NORM), 200),
    "ssm": ("ssm", (NORM,), 150),
}
ALL_STATES = (LOW, NORM, HIGH)
"""In the order in which the heads name them."""


@cache
def texts() -> list[Text]:
    prompts = torch.tensor(PROMPTS)
    with torch.no_grad():
        written = MODULE.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=ANSWER, do_sample=False)
    return [Text(tokens=row.numpy(), is_answer=np.arange(len(row)) >= prompts.shape[1]) for row in written]


def states_of(made: Sequence[Text], names: Sequence[str], dtype: torch.dtype = torch.bfloat16) -> MemoryStates:
    with torch.no_grad(), recorded_outputs(MODULE, names) as outputs:
        MODULE(torch.from_numpy(np.stack([text.tokens for text in made])))
    return MemoryStates(list(torch.cat([outputs[name][0] for name in names], dim=-1).to(dtype)))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two heads that read different states, of which one drafts few tokens, and a trimmed SSM."""
    path: Path = tmp_path_factory.mktemp("tuned")
    made = texts()
    for name, (kind, states, trim) in DRAFTS.items():
        token_ids = torch.from_numpy(commonest_tokens(made, vocab_size=288, count=trim))
        member = new_member(LLM, DraftModelSettings(kind=kind, layers=1, depths=1), token_ids=token_ids, states=states, seed=0)  # type: ignore[arg-type]
        if kind == "head":  # an SSM is good enough as it begins
            _train(member, made, states, path / "checkpoint")
        save_draft(path / name, member.description, member.objective.weights(), None if trim is None else token_ids)
    return {name: str(path / name) for name in DRAFTS}


def _train(member: Member, made: Sequence[Text], states: Sequence[str], checkpoint: Path) -> None:
    data = TrainingData(texts=made, states=states_of(made, states), train=range(40), held_out=(), guessed={})  # type: ignore[arg-type]
    settings = TrainingSettings(passes=12, batch_tokens=1440, learning_rate=1e-2)
    Trainer(member.objective, data, settings, checkpoint=checkpoint, fingerprint="", report=lambda step, total, loss: None).run()
    checkpoint.unlink()


@pytest.fixture(scope="module")
def llm(folders: dict[str, str]) -> flexspec.LLM:
    return flexspec.compile(MODULE, list(folders.values()), tree=[3, 2, 1], max_batch=4, max_len=64)


def generated(llm: flexspec.LLM, chosen: Sequence[int], params: SamplingParams) -> tuple[list[list[int]], int, int]:
    """The texts, and how many tokens were drafted and accepted, with some of the drafters on the compiled model."""
    drafters: list[Any] = [llm.drafters[place] for place in chosen]
    again = [drafter.again(max_requests=4, block_size=80) for drafter in drafters]
    outputs = make_engine(llm.plan.llm.model, LLM, llm.plan.strategy, drafters=again).generate(PROMPTS[:4], params)
    return [output.token_ids for output in outputs], sum(one.stats.drafted for one in outputs), sum(one.stats.accepted for one in outputs)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("chosen", [[0], [1], [2], [0, 1, 2]], ids=["low", "high", "ssm", "all"])
def test_the_text_is_that_of_plain_decoding(llm: flexspec.LLM, chosen: list[int], temperature: float) -> None:
    params = SamplingParams(max_tokens=ANSWER, temperature=temperature, seed=3)
    plain, _, _ = generated(llm, [], params)
    text, drafted, accepted = generated(llm, chosen, params)
    assert text == plain and 0 < accepted < drafted
    if not temperature:
        assert plain == [one.tokens[6:].tolist() for one in texts()[:4]]


def test_what_is_drafted_alone_is_merged(llm: flexspec.LLM) -> None:
    assert [Path(name).name for name in llm.plan.strategy.drafters] == list(DRAFTS)
    assert llm.plan.llm.model.hidden_size == 3 * 32, "states that two heads read are computed once"
    assert {draft.model.lowering.target for draft in llm.plan.ssms} == {llm.plan.llm.model.lowering.target}, "no head falls back"
    assert [llm.drafters[place]._model.vocab_size for place in range(3)] == [288, 200, 150]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["low", "high"])
def test_a_head_drafts_what_it_was_trained_to(llm: flexspec.LLM, folders: dict[str, str], name: str) -> None:
    """The compiled drafter's chain is that of the module, fed entry by entry with its own hidden states."""
    draft = load_if_tuned(folders[name], LLM)
    assert draft is not None
    head: Any = draft.loaded.module
    text, depth = texts()[5].tokens[:20].tolist(), 4
    states = states_of([Text(tokens=np.array(text), is_answer=np.zeros(20, dtype=np.bool_))], ALL_STATES, torch.float32).read(0)
    drafter: Any = llm.drafters[list(DRAFTS).index(name)]
    drafter = drafter.again(max_requests=1, block_size=40)
    drafter.read_states(0, 0, states[:-1])
    sampler = RequestSampler(SamplingParams(), seed=0, vocab_limit=288)
    (tree,) = drafter.propose([DraftRequest(request_id=0, tokens=text, sampler=sampler, spec=TreeSpec(widths=(1,) * depth))])

    places = [ALL_STATES.index(state) for state in draft.states]
    entries, drafted = text[1:], [text[-1]]
    with torch.no_grad():
        features = head.encoder(torch.cat([states[:-1, 32 * place : 32 * (place + 1)] for place in places], dim=-1))
        for _ in range(depth):
            hidden = head.layer(head.entry(torch.tensor([entries]), features[None]), torch.arange(len(entries))[None])[0, -1]
            column = int(head.logits(hidden).argmax())
            drafted.append(column if draft.token_ids is None else int(draft.token_ids[column]))
            entries, features = [*entries, drafted[-1]], torch.cat([features, hidden[None]])
    assert list(tree.tokens) == drafted


def test_what_is_no_tuned_draft_model(folders: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [load_if_tuned(given, LLM) for given in ("suffix", "prune:1", str(tmp_path), MODULE, None, 3)] == [None] * 6
    tuned = load_tuned(["suffix", folders["ssm"], folders["low"]], LLM)
    assert list(tuned) == [1, 2] and hidden_states_for(tuned) == DRAFTS["low"][1]
    monkeypatch.setattr("flexspec.api.draft_models.shipped_folder", lambda name: Path(folders["ssm"]) if name == "tiny:ssm" else None)
    shipped = load_if_tuned("tiny:ssm", LLM, whole=True)
    assert shipped is not None and (shipped.loaded.name, shipped.token_ids) == ("tiny:ssm", None)


def test_another_model_is_refused(folders: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"draft model .*low was made for a model with layers=2, and LlamaForCausalLM has layers=3: give"):
        flexspec.compile(tiny("llama", layers=3), [folders["low"]])
