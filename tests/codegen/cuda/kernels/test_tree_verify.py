from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from flexspec.codegen.cuda.kernels import tree_verify as module
from flexspec.codegen.cuda.kernels.tree_verify import Walks, tree_verify, tree_verify_reference, tree_verify_variants
from flexspec.codegen.cuda.kernels.truncate import Cuts, truncate_reference
from flexspec.codegen.cuda.kernels.variant import UncoveredCase
from flexspec.codegen.cuda.targets import TARGETS
from flexspec.config import SamplingParams
from flexspec.runtime.sampling import NonFiniteLogitsError, RequestSampler
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.verifiers.walk import WalkVerifier

TEMPERATURES = (0.0, 1e-6, 0.7, 1.0)


@dataclass(kw_only=True)
class Trees:
    """Trees of some requests, the LLM's logits at their nodes, and how the requests sample."""

    logits: torch.Tensor
    trees: list[TokenTree]
    samplers: list[RequestSampler]
    indices: list[int]
    nodes: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = np.cumsum([0, *(len(tree.tokens) for tree in self.trees)]).tolist()

    def walks(self, verify=tree_verify, *, padding: int = 0, **options: int) -> Walks:  # type: ignore[no-untyped-def]
        """What the kernel says, after `padding` further nodes and requests."""
        tokens, parents = ([number for tree in self.trees for number in getattr(tree, name)] for name in ("tokens", "parents"))
        filler = torch.full((padding, self.logits.shape[1]), torch.nan, dtype=self.logits.dtype)
        keys = {}
        if not all(sampler.greedy for sampler in self.samplers):
            keys = {
                "seeds": torch.from_numpy(np.array([*(sampler.seed for sampler in self.samplers), *[7] * padding], dtype=np.uint64)),
                "completions": int32([sampler.completion for sampler in self.samplers], padding),
                "indices": int32(self.indices, padding),
                "temperatures": torch.tensor([*(sampler.params.temperature for sampler in self.samplers), *[1.0] * padding]).double(),
            }
            keys["temperatures"][: len(self.trees)] = torch.tensor([sampler.params.temperature for sampler in self.samplers]).double()
        return verify(
            torch.cat([self.logits, filler]),
            int32(tokens, padding),
            int32(parents, padding),
            int32([*self.nodes, *self.nodes[-1:] * padding]),
            vocab_limits=int32([sampler.vocab_limit for sampler in self.samplers], padding),
            **keys,
            **self.cuts(padding),
            **options,
        )

    def cuts(self, padding: int) -> dict[str, Cuts]:
        """What requests cut, if one does; of padding, anything."""
        each = [sampler.params for sampler, tree in zip(self.samplers, self.trees, strict=True) for _ in tree.tokens]
        if all((params.top_k, params.top_p, params.min_p) == (0, 1, 0) for params in each):
            return {}
        limits = [sampler.vocab_limit for sampler, tree in zip(self.samplers, self.trees, strict=True) for _ in tree.tokens]
        cuts = truncate_reference(
            self.logits.float(),
            vocab_limits=int32(limits),
            top_ks=int32([params.top_k for params in each]),
            **{f"{name}s": torch.tensor([getattr(params, name) for params in each]).double() for name in ("temperature", "top_p", "min_p")},
        )
        return {"cuts": Cuts(torch.cat([cuts.logits, torch.full((padding,), torch.nan)]), torch.cat([cuts.ids, int32([], padding)]))}

    def expected(self) -> list[tuple[list[int], int]]:
        """The runtime's own paths and bonus tokens; -1 for logits that are not finite."""
        found = []
        for tree, sampler, index, first in zip(self.trees, self.samplers, self.indices, self.nodes[:-1], strict=True):
            reached = []

            def logits(node: int, first: int = first, reached: list[int] = reached) -> torch.Tensor:
                reached.append(node)
                return self.logits[first + node].float()

            try:
                verdict = WalkVerifier("coupled").verify(tree, logits, sampler, index)
            except NonFiniteLogitsError:
                found.append((reached, -1))
            else:
                found.append((list(verdict.path), verdict.bonus))
        return found

    def assert_agrees(self, **options: int) -> list[tuple[list[int], int]]:
        expected = self.expected()
        for verify in (tree_verify_reference, tree_verify):
            assert listed(self.walks(verify, **options))[: len(self.trees)] == expected
        return expected


def int32(numbers: Sequence[int], padding: int = 0) -> torch.Tensor:
    return torch.tensor([*numbers, *[0] * padding], dtype=torch.int32)


def listed(walks: Walks) -> list[tuple[list[int], int]]:
    found = []
    for path, length, bonus in zip(*(result.tolist() for result in walks), strict=True):
        assert length <= len(path) and path[length:] == [-1] * (len(path) - length)
        found.append((path[:length], bonus))
    return found


def random_logits(rng: np.random.Generator, nodes: int, vocab: int, dtype: torch.dtype, step: float = 0.5) -> torch.Tensor:
    """Logits of which many are equal."""
    return torch.from_numpy(12 + step * rng.integers(-8, 9, (nodes, vocab))).to(dtype)


def random_trees(
    temperatures: Sequence[float],
    *,
    vocab: int,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    step: float = 0.5,
    size: int = 12,
    **params: float,
) -> Trees:
    """Trees of which a part hangs along what sampling is going to say, with twins."""
    rng = np.random.default_rng(seed)
    trees, samplers, indices, rows = [], [], [], []
    for row, temperature in enumerate(temperatures):
        limit = vocab - int(rng.integers(0, min(vocab // 2, 6)))
        sampler = RequestSampler(
            SamplingParams(temperature=temperature, **params),  # type: ignore[arg-type]
            seed=2**64 - 1 - row,
            vocab_limit=limit,
            completion=int(rng.integers(0, 4)),
        )
        index, nodes = int(rng.integers(0, 10_000)), int(rng.integers(1, size + 1))
        logits = random_logits(rng, nodes, vocab, dtype, step)
        # Were it allowed, padding would win.
        logits[:, limit:] = 1000
        tokens, parents, depths = [int(rng.integers(vocab))], [-1], [0]
        for node in range(1, nodes):
            parent = node - 1 if rng.random() < 0.5 else int(rng.integers(node))
            is_right = rng.random() < 0.7
            tokens.append(sampler.pick(logits[parent].float(), index + depths[parent]) if is_right else int(rng.integers(vocab)))
            parents.append(parent)
            depths.append(depths[parent] + 1)
        trees.append(TokenTree(tokens=tokens, parents=parents))
        samplers.append(sampler)
        indices.append(index)
        rows.append(logits)
    return Trees(logits=torch.cat(rows), trees=trees, samplers=samplers, indices=indices)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which the interpreter is quicker with."""
    for name in ("_CHUNK", "_NOISY_CHUNK"):
        monkeypatch.setattr(module, name, 32)


@pytest.mark.parametrize(
    ("vocab", "dtype", "step"),
    [
        (37, torch.float32, 0.5),  # two parts of the vocabulary
        (16, torch.bfloat16, 0.5),
        (24, torch.bfloat16, 0.25),
        (9, torch.float32, 1e-6),  # steps of a float32's last bit
    ],
)
def test_walks_are_the_runtime_s(vocab: int, dtype: torch.dtype, step: float) -> None:
    case = random_trees(TEMPERATURES, vocab=vocab, dtype=dtype, step=step, size=7, seed=vocab)
    assert len({len(path) for path, _ in case.assert_agrees(padding=2)}) >= 2


def test_chunks_of_the_size_that_gpus_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    random_trees((0.7, 0.0, 1.0), vocab=1100, size=2).assert_agrees()


@pytest.mark.parametrize("cut", [{"top_k": 2}, {"top_p": 0.6}, {"min_p": 0.9}, {"top_k": 6, "top_p": 0.9, "min_p": 0.1}], ids=str)
def test_walks_keep_to_what_is_not_cut(cut: dict[str, float]) -> None:
    case = random_trees((1.0, 0.0, 0.7), vocab=40, seed=3, size=4, **cut)
    whole = Trees(
        logits=case.logits,
        trees=case.trees,
        samplers=[RequestSampler(SamplingParams(temperature=1.0), seed=one.seed, vocab_limit=one.vocab_limit) for one in case.samplers],
        indices=case.indices,
    )
    assert case.assert_agrees(padding=1) != whole.expected()


@pytest.mark.parametrize(("vocab", "dtype"), [(16, torch.bfloat16), (31, torch.bfloat16), (80, torch.float32)])
def test_greedy_walks_take_no_keys(vocab: int, dtype: torch.dtype) -> None:
    case = random_trees([0.0] * 4, vocab=vocab, dtype=dtype, seed=1, size=8)
    assert len({len(path) for path, _ in case.assert_agrees(padding=1)}) >= 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_parts_of_a_vocabulary_may_have_several_chunks(temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    case = random_trees([temperature] * 2, vocab=5 * 32 + 1, seed=2, size=2)
    for parts in (1, 2):
        monkeypatch.setattr(module, "_PROGRAMS", parts * len(case.logits))
        assert listed(case.walks()) == case.expected()


@pytest.mark.parametrize("temperatures", [(0.0,), (0.0, 1.0)], ids=["greedy", "noise"])
def test_the_first_of_equal_chunks_counts(temperatures: Sequence[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PROGRAMS", 1)
    case = random_trees(temperatures, vocab=100, size=1)
    case.logits.fill_(2)
    assert case.assert_agrees()[0][1] == 0


def test_a_tiny_temperature_leaves_ties_to_the_noise() -> None:
    case = random_trees([1e-30] * 8, vocab=12, seed=3, size=1)
    expected = case.assert_agrees()
    assert [bonus for _, bonus in expected] != case.logits[:, :6].argmax(dim=1).tolist()


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_of_twins_the_first_is_taken_and_of_equals_the_lowest(temperature: float) -> None:
    case = random_trees([temperature], vocab=6, seed=4, size=1)
    sampler = case.samplers[0]
    logits = torch.zeros(6, 6)
    logits[:, 3:5] = 100
    first, second = (sampler.pick(logits[0], case.indices[0] + depth) for depth in range(2))
    tree = TokenTree(tokens=[0, 5, first, first, second, second], parents=[-1, 0, 0, 0, 3, 2])
    case = Trees(logits=logits, trees=[tree], samplers=[sampler], indices=case.indices)
    ((path, bonus),) = case.assert_agrees()
    assert path == [0, 2, 5] and (bonus == 3 or temperature > 0)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize(
    ("wrong", "place", "node", "bonus"),
    [
        (torch.nan, 5, 1, -1),
        (torch.inf, 0, 1, -1),
        (-torch.inf, slice(None), 1, -1),
        (torch.nan, 15, 1, 2),  # no token's
        (torch.nan, 5, 2, 2),  # not reached
        (-torch.inf, slice(3, None), 1, 2),  # banned
    ],
)
def test_logits_that_are_not_finite(temperature: float, wrong: float, place: int | slice, node: int, bonus: int) -> None:
    logits = torch.zeros(3, 16)
    logits[:, 2] = 50
    logits[node, place] = wrong
    sampler = RequestSampler(SamplingParams(temperature=temperature), seed=1, vocab_limit=15)
    tree = TokenTree(tokens=[0, 2, 1], parents=[-1, 0, 0])
    case = Trees(logits=logits, trees=[tree], samplers=[sampler], indices=[9])
    assert case.assert_agrees() == [([0, 1], bonus)]


def test_many_requests_and_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REQUESTS", 4)  # looked through at once
    case = random_trees([0.0] * 10, vocab=16, seed=5, size=2)
    walks = case.walks(padding=4)
    assert listed(walks) == [*case.expected(), *[([], -1)] * 4]
    assert len(set(walks.lengths.tolist())) == 3


@pytest.mark.parametrize("verify", [tree_verify, tree_verify_reference])
def test_a_long_chain_among_other_children(verify, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(module, "_DEPTHS", 4)  # filled up at once
    logits = torch.zeros(17, 16)
    logits[:, 2] = 1
    # A chain at the odd nodes, and a wrong child beside each.
    tree = TokenTree(tokens=[0, *[2, 1] * 8], parents=[-1, *(parent for node in range(8) for parent in [max(2 * node - 1, 0)] * 2)])
    sampler = RequestSampler(SamplingParams(), seed=0, vocab_limit=16)
    case = Trees(logits=logits, trees=[tree], samplers=[sampler], indices=[3])
    path = [0, *range(1, 16, 2)]
    assert listed(case.walks(verify)) == [(path, 2)] == case.expected()
    # Where there is no more room, the token of the next node is the last.
    assert listed(case.walks(verify, max_depth=5)) == [(path[:5], 2)]
    assert listed(case.walks(verify, max_depth=9)) == [(path, 2)]


def test_the_first_child_may_be_far_behind_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_NODES", 4)  # looked through at once
    logits = torch.zeros(16, 16)
    logits[:, 2] = 1
    sampler = RequestSampler(SamplingParams(), seed=0, vocab_limit=16)
    for child in (4, 5, 14):
        tree = TokenTree(tokens=[0, *[1] * (child - 1), *[2] * (16 - child)], parents=[-1, *[0] * 15])
        assert Trees(logits=logits, trees=[tree], samplers=[sampler], indices=[3]).assert_agrees() == [([0, child], 2)]


def test_what_no_variant_covers_is_named() -> None:
    case = random_trees([0.0], vocab=16)
    case.logits = case.logits.double()
    with pytest.raises(UncoveredCase, match=r"torch\.float64"):
        case.walks()
    case.logits = torch.zeros(65, 1)[1:].view(1, 64)[:, :16]
    with pytest.raises(UncoveredCase, match="at multiples of 16"):
        tree_verify(case.logits, int32([0]), int32([-1]), int32([0, 1]), vocab_limits=int32([16]))


def test_variants_are_told_apart_by_their_case() -> None:
    for target in TARGETS:
        cases = [(variant.kernel, variant.case) for variant in tree_verify_variants(target)]
        assert len(set(cases)) == len(cases) == 10
