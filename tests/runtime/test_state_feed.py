"""Hidden states reach the drafters complete, in order, and as a linear prefill gives them."""

import warnings
from collections.abc import Sequence

import pytest
import torch

from engine_reference import plain
from flexspec.config import SamplingParams
from flexspec.errors import UsageError
from flexspec.runtime.drafters.base import DraftRequest, StateReader
from flexspec.runtime.drafters.head import HeadDrafter
from flexspec.runtime.drafters.ngram import NgramDrafter
from flexspec.runtime.drafters.ssm import SsmDrafter
from flexspec.runtime.engine import Engine
from flexspec.runtime.token_tree import TokenTree
from flexspec.tree_shape import Tree, TreeLimits, TreeSpec
from toy_drafter import ToyDrafter
from toy_model import ToyModel
from toy_states import COLUMNS, StatefulToy, ToyHead, encode, head_drafter, state_after

VOCAB = 24
PROMPTS = [[3], list(range(20)), [5, 6, 7] * 12]


def toy(**changes) -> StatefulToy:
    return StatefulToy(**{"vocab_size": VOCAB, "seed": 3} | changes)


class Half(StatefulToy):
    """The same LLM, but at every second state its choice comes second, and at some it is wrong."""

    def logits_of(self, path):  # type: ignore[no-untyped-def]
        logits, kind = super().logits_of(path).copy(), sum(state_after(path)) % 10
        if kind % 2:
            logits[(logits.argmax() + 1) % VOCAB] = logits.max() + 0.1
        return -logits if kind == 8 else logits


class Listener(ToyDrafter):
    """Checks all that it is told."""

    name = "listener"

    def __init__(self) -> None:
        super().__init__(Half(vocab_size=VOCAB, seed=3))
        self.states: dict[int, list[torch.Tensor]] = {}
        self.ended: dict[int, torch.Tensor] = {}

    def read_states(self, request_id: int, start: int, states: torch.Tensor) -> None:
        known = self.states.setdefault(request_id, [])
        assert start == len(known) and states.dtype == torch.float32 and states.shape[1] == 3 and len(states)
        known += states

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree]:
        for request in requests:
            assert len(self.states[request.request_id]) == len(request.tokens) - 1
            assert_right(self.states[request.request_id], request.tokens)
        return super().propose(requests)

    def release(self, request_id: int) -> None:
        super().release(request_id)
        self.ended[request_id] = self.states.pop(request_id, [])


def assert_right(states: Sequence[torch.Tensor], text: Sequence[int]) -> None:
    found = encode(torch.stack(list(states))[:, list(COLUMNS)]).int().tolist()
    assert found == [list(state_after(text[: end + 1])) for end in range(len(states))]


@pytest.mark.parametrize("tree", [TreeSpec(widths=(1, 1, 1)), TreeSpec(widths=(2, 2, 1)), TreeLimits(depth=3, branch=2, budget=8)], ids=str)
@pytest.mark.parametrize(("max_batch", "pass_tokens"), [(1, 64), (3, 24), (2, 7)])
def test_states_are_those_of_a_linear_prefill(tree: Tree, max_batch: int, pass_tokens: int) -> None:
    listener = Listener()
    assert isinstance(listener, StateReader)
    params = SamplingParams(max_tokens=20, temperature=0.5, seed=1)
    engine = Engine(toy(), drafters=[listener], tree=tree, max_len=128, max_batch=max_batch, pass_tokens=pass_tokens)
    outputs = engine.generate(PROMPTS, params)
    accepted, drafted = (sum(getattr(output.stats, what) for output in outputs) for what in ("accepted", "drafted"))
    assert 0 < accepted < drafted or isinstance(tree, TreeLimits), "adaptive trees go by the clock"
    for (_, states), output, prompt in zip(sorted(listener.ended.items()), outputs, PROMPTS, strict=True):
        assert output.token_ids == plain(toy(), prompt, params)
        assert len(states) == len(prompt) + 20 - 1
        assert_right(states, prompt + output.token_ids)


def test_a_stop_inside_an_accepted_run_ends_the_states_too() -> None:
    text = plain(toy(), [3], SamplingParams(max_tokens=30))
    for stop in range(8, 24):
        if text.index(text[stop]) < stop:
            continue
        listener = Listener()
        listener.model = toy()
        engine = Engine(toy(), drafters=[listener], tree=TreeSpec(widths=(2, 1, 1, 1)), max_len=128)
        output = engine.generate([[3]], SamplingParams(max_tokens=30, stop_token_ids=(text[stop],)))[0]
        assert output.token_ids == text[: stop + 1]
        (states,) = listener.ended.values()
        assert len(states) == stop + 1, "of the prompt's token and all new ones but the last"
        assert_right(states, [3, *text])


def test_an_abort_ends_one_request_alone() -> None:
    listener = Listener()
    engine = Engine(toy(), drafters=[listener], tree=TreeSpec(widths=(2, 1)), max_len=128, max_batch=3, pass_tokens=12)
    params = SamplingParams(max_tokens=25)
    ids = [engine.add(prompt, params) for prompt in PROMPTS]
    for _ in range(3):
        engine.step()
    output = engine.abort(ids[2])
    assert output is not None and output.finish_reason == "abort" and set(listener.states) == set(ids[:2])
    assert_right(listener.ended[ids[2]], PROMPTS[2])
    while engine.has_work:
        engine.step()
    assert not listener.states
    assert [len(listener.ended[ids[place]]) for place in (0, 1)] == [len(PROMPTS[place]) + 24 for place in (0, 1)]


@pytest.mark.parametrize("pass_tokens", [8, 64])
def test_after_preemption_they_come_from_the_first_one_on_again(pass_tokens: int) -> None:
    listener = Listener()
    engine = Engine(
        toy(),
        drafters=[listener],
        tree=TreeSpec(widths=(2, 1)),
        max_len=66,
        max_batch=3,
        pass_tokens=pass_tokens,
        block_size=4,
        num_blocks=20,
    )
    params = SamplingParams(max_tokens=30)
    outputs = engine.generate([*PROMPTS, [1]], params)
    assert [output.token_ids for output in outputs] == [plain(toy(), prompt, params) for prompt in [*PROMPTS, [1]]]
    assert len(listener.released) > 4 and engine.statistics().preemptions == len(listener.released) - 4
    assert [len(states) for _, states in sorted(listener.ended.items())] == [len(prompt) + 29 for prompt in [*PROMPTS, [1]]]


def test_one_read_a_pass_for_all_requests_and_readers_and_none_without() -> None:
    model, readers = toy(), [Listener(), Listener()]
    readers[1].name = "second"
    engine = Engine(model, drafters=[*readers, NgramDrafter()], tree=TreeSpec(widths=(1, 1)), max_len=128, max_batch=3)
    engine.generate(PROMPTS, SamplingParams(max_tokens=10))
    assert model.num_reads == model.num_passes
    assert {request_id: len(states) for request_id, states in readers[0].ended.items()} == {
        request_id: len(states) for request_id, states in readers[1].ended.items()
    }
    model = toy()
    assert not isinstance(SsmDrafter("ssm", ToyModel(), max_requests=1, block_size=8), StateReader)
    Engine(model, drafters=[NgramDrafter()], tree=TreeSpec(widths=(1, 1)), max_len=128).generate(PROMPTS, SamplingParams(max_tokens=10))
    assert model.num_reads == 0


def test_a_reader_keeps_only_what_is_its_request() -> None:
    listener = Listener()
    engine = Engine(toy(), drafters=[listener], tree=TreeSpec(widths=(1,)), max_len=128, max_batch=3)
    for prompt in PROMPTS:
        engine.add(prompt, SamplingParams(max_tokens=9))
    for _ in range(3):
        engine.step()
    for states in listener.states.values():
        assert all(state.untyped_storage().nbytes() <= 36 * 12 for state in states)


def test_states_that_a_drafter_can_not_take_cost_its_drafts_of_that_request_alone() -> None:
    class Deaf(HeadDrafter):
        def read_states(self, request_id: int, start: int, states: torch.Tensor) -> None:
            if len(states) == 20:
                raise ZeroDivisionError("not this one")
            super().read_states(request_id, start, states)

    own = Deaf("deaf", ToyHead(vocab_size=VOCAB, seed=3), columns=COLUMNS, max_requests=3, block_size=200)
    engine = Engine(toy(), drafters=[own], tree=TreeSpec(widths=(1, 1)), max_len=128, max_batch=3)
    params = SamplingParams(max_tokens=20)
    with pytest.warns(RuntimeWarning, match="'deaf' raised ZeroDivisionError when it was given hidden states: not this one"):
        outputs = engine.generate(PROMPTS, params)
    assert [output.token_ids for output in outputs] == [plain(toy(), prompt, params) for prompt in PROMPTS]
    assert [output.stats.accepted > 0 for output in outputs] == [True, False, True]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert engine.generate([PROMPTS[0], PROMPTS[1], PROMPTS[2]], params)[2].stats.accepted > 0, "said once"


def test_an_llm_without_hidden_states_is_refused() -> None:
    with pytest.raises(UsageError, match="drafter 'head' reads hidden states, and the LLM was compiled without any"):
        Engine(ToyModel(vocab_size=VOCAB), drafters=[head_drafter(ToyHead(vocab_size=VOCAB))], tree=TreeSpec(widths=(1,)))
