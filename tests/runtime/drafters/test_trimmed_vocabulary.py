"""A draft model over some tokens proposes what one over all tokens does to which the others are impossible."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from engine_reference import plain
from flexspec.codegen.batch import Batch
from flexspec.codegen.kv_storage import KVStorage
from flexspec.config import SamplingParams
from flexspec.runtime.candidate_search import find_candidates
from flexspec.runtime.drafters.base import Children, DraftRequest, StateReader
from flexspec.runtime.drafters.level_drafter import LevelDrafter
from flexspec.runtime.drafters.ssm import SsmDrafter
from flexspec.runtime.engine import Engine
from flexspec.runtime.logit_rules.factory import make_rules
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.token_tree import TokenTree
from flexspec.tree_shape import Tree, TreeLimits, TreeSpec
from toy_model import ToyModel
from toy_states import StatefulToy, ToyHead, head_drafter, state_after

VOCAB = 2000
EOS = 999
KEPT = np.sort(np.random.default_rng(3).permutation(np.delete(np.arange(VOCAB + 50), EOS))[:300]).astype(np.int64)
"""Without the token that ends the text, and with padding."""
TEXT = [5, 6, 7, 1999, 8]
TREES = [TreeSpec(widths=(4, 2, 1)), TreeSpec(widths=(1, 1, 1, 1))]


class _Masks:
    """Makes all tokens impossible but those in `kept`; with `is_trimmed` their logits are all that is put out."""

    kept: np.ndarray
    is_trimmed: bool

    def forward(self, batch: Batch, kv: KVStorage, features: torch.Tensor | None = None) -> torch.Tensor:
        logits = super().forward(batch, kv, features)  # type: ignore[misc]
        if self.is_trimmed:
            return logits[:, torch.from_numpy(self.kept)].contiguous()
        masked = torch.full_like(logits, -torch.inf)
        masked[:, self.kept] = logits[:, self.kept]
        return masked


class MaskedToy(_Masks, ToyModel):
    pass


class MaskedHead(_Masks, ToyHead):
    pass


class _Columns:
    """A model whose vocabulary, as `CompiledModel` has it, is the columns of its logits; it still checks what it is fed."""

    def __init__(self, model: _Masks) -> None:
        self._model = model
        self.vocab_size = len(model.kept)

    def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
        return getattr(self._model, name)


def ssm(model: ToyModel, **options) -> SsmDrafter:
    return SsmDrafter("ssm", model, max_requests=3, block_size=300, **options)


KINDS = {ssm: MaskedToy, head_drafter: MaskedHead}


def drafter(make: Callable, kept: np.ndarray = KEPT, *, is_trimmed: bool, vocab: int = VOCAB + 50, **options) -> LevelDrafter:
    model = KINDS[make](vocab_size=vocab, seed=4)
    model.kept, model.is_trimmed = kept, is_trimmed
    return make(_Columns(model), token_ids=kept, **options) if is_trimmed else make(model, **options)


def sampler(params: SamplingParams, **options) -> RequestSampler:
    rules = make_rules(params, ends=[EOS], vocab_size=VOCAB)
    made = RequestSampler(params, seed=3, vocab_limit=VOCAB, rules=rules, **options)
    made.extend(TEXT[:3])
    made.extend(TEXT[3:])
    return made


def propose(own: LevelDrafter, params: SamplingParams, tree: Tree, children: Children = Children.ANY) -> TokenTree:
    if isinstance(own, StateReader):
        states = [state_after(TEXT[: end + 1]) for end in range(len(TEXT) - 1)]
        own.read_states(0, 0, torch.tensor([(b, 7, a + b) for a, b in states], dtype=torch.float32))
    return own.propose([DraftRequest(request_id=0, tokens=TEXT, sampler=sampler(params), spec=tree, children=children)])[0]


RULED = {
    "repetition_penalty": 1.3,
    "frequency_penalty": 0.5,
    "presence_penalty": 0.2,
    "min_tokens": 5,
    "logit_bias": {int(KEPT[7]): 6.0, 3: 9.0},
}
PARAMS = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 5, "min_p": 0.01},
    {"temperature": 1.0, "top_k": 500},
]


@pytest.mark.parametrize("options", [*PARAMS, *(RULED | params for params in PARAMS)], ids=str)
@pytest.mark.parametrize("children", Children)
def test_proposals_are_those_of_a_masked_vocabulary(children: Children, options: dict) -> None:
    params = SamplingParams(**options)
    for make in KINDS:
        for alpha in (0.0, 0.5, 1.0, None) if children is Children.ANY and make is ssm else (None,):
            trees: list[Tree] = [*TREES, TreeLimits(depth=3, branch=3, budget=12)] if children is Children.ANY else list(TREES)
            for tree in trees:
                trimmed = propose(drafter(make, is_trimmed=True, alpha=alpha), params, tree, children)
                masked = propose(drafter(make, is_trimmed=False, alpha=alpha), params, tree, children)
                assert_equal(trimmed, masked)
                assert trimmed.num_drafted >= tree.depth
                assert set(trimmed.tokens[1:]) <= set(KEPT[KEPT < VOCAB].tolist())


def assert_equal(one: TokenTree, other: TokenTree) -> None:
    assert (one.tokens, one.parents, one.grades) == (other.tokens, other.parents, other.grades)
    assert one.draws.keys() == other.draws.keys()
    for node, draws in one.draws.items():
        for draw, twin in zip(draws, other.draws[node], strict=True):
            assert draw.node == twin.node and (draw.q is None) == (twin.q is None)
            if draw.q is not None and twin.q is not None:
                np.testing.assert_array_equal(draw.q.ids, twin.q.ids)
                np.testing.assert_allclose(draw.q.probs, twin.q.probs, rtol=1e-12)


def test_the_lowest_global_id_wins_a_tie() -> None:
    ids = np.array([3, 700, 1100, 1999, 2010], dtype=np.int64)
    own = RequestSampler(SamplingParams(), seed=1, vocab_limit=VOCAB)
    logits = torch.tensor([1.0, 2.0, 2.0, 2.0, 9.0])
    assert own.distribution(logits, token_ids=ids).ids.tolist() == [700]
    values = own.ruled(logits.numpy(), (), ids)
    found, _ = find_candidates(values[np.newaxis], [own.sought(1, 4, 3, 0.0, with_noise=False)], ids)
    assert found.best([3], [0.0])[0][0] == [700, 1100, 1999]


class OnlyTheMissing:
    """Allows a token that the draft model does not know."""

    def extend(self, tokens: Sequence[int]) -> None:
        pass

    def apply(self, logits, path) -> None:  # type: ignore[no-untyped-def]
        assert len(logits) == VOCAB
        logits[np.arange(VOCAB) != EOS] = -np.inf


@pytest.mark.parametrize("children", Children)
def test_it_drafts_nothing_where_only_missing_tokens_are_allowed(children: Children) -> None:
    own = drafter(ssm, is_trimmed=True)
    choose = RequestSampler(SamplingParams(temperature=1.0), seed=3, vocab_limit=VOCAB, rules=[OnlyTheMissing()])
    asked = DraftRequest(request_id=0, tokens=TEXT, sampler=choose, spec=TREES[0], children=children)
    assert own.propose([asked])[0].num_drafted == 0, "and warns of nothing"


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("tree", [TreeSpec(widths=(2, 1, 1)), TreeLimits(depth=3, branch=2, budget=8)], ids=["static", "adaptive"])
def test_the_text_is_that_of_plain_decoding(temperature: float, tree: Tree) -> None:
    vocab, kept = 24, np.array([0, 1, 3, 5, 6, 7, 10, 11, 12, 15, 17, 18, 19, 20, 22, 23], dtype=np.int64)
    target = StatefulToy(vocab_size=vocab, seed=4)
    drafters = [drafter(make, kept, is_trimmed=True, vocab=vocab, alpha=1.0) for make in KINDS]
    engine = Engine(target, drafters=drafters, tree=tree, max_len=100, max_batch=3)
    params = SamplingParams(max_tokens=30, temperature=temperature, seed=5)
    prompts = [[3], [2, 4, 8], list(range(20))]
    outputs = engine.generate(prompts, params)
    assert [output.token_ids for output in outputs] == [plain(target, prompt, params) for prompt in prompts]
    assert sum(output.stats.accepted for output in outputs) > 20 or isinstance(tree, TreeLimits), "adaptive trees go by the clock"
