"""A node's chain of trials against the verifiers' own, and the law of what it emits, all outcomes enumerated."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flexspec.codegen.cuda.kernels import residual as module
from flexspec.codegen.cuda.kernels.residual import ROW_UNIT, Trials, residual, residual_reference, residual_variants
from flexspec.codegen.cuda.kernels.variant import UncoveredCase
from flexspec.codegen.cuda.targets import TARGETS
from flexspec.runtime.distribution import Distribution
from flexspec.runtime.verifiers.trials import acceptance
from flexspec.runtime.verifiers.trials import residual as host_residual
from oracles.enumerate import outcomes
from oracles.proposals import KINDS, to_distribution

EXACT = 1e-12
LAST = 1 - 2.0**-53
RUN = {"kernel": residual, "reference": residual_reference}


def padded(rows: torch.Tensor) -> torch.Tensor:
    """Rows as long as the kernel takes them."""
    return torch.nn.functional.pad(rows, (0, -rows.shape[1] % ROW_UNIT))


@dataclass(kw_only=True)
class Case:
    """Nodes as the kernel gets them."""

    p: torch.Tensor
    q: torch.Tensor
    tokens: torch.Tensor
    q_rows: torch.Tensor
    uniforms: torch.Tensor
    owed: torch.Tensor

    def run(self, by: str, *, is_decided: bool = True) -> Trials:
        decided = torch.full_like(self.tokens[:, 0], int(is_decided))
        return RUN[by](padded(self.p), padded(self.q), self.tokens, self.q_rows, self.uniforms, owed=self.owed, is_decided=decided)


def random_rows(rng: np.random.Generator, count: int, vocab: int) -> torch.Tensor:
    rows = rng.dirichlet(np.full(vocab, 0.4), size=count)
    rows[rng.random(rows.shape) < 0.2] = 0.0
    rows[np.arange(count), rng.integers(vocab, size=count)] += 0.1
    return torch.from_numpy(rows / rows.sum(1, keepdims=True))


def random_case(seed: int, nodes: int, *, vocab: int, trials: int) -> Case:
    """Children drawn from two rows a node, or chosen; the rows of two drafters alternate, and some nodes have fewer trials."""
    rng = np.random.default_rng(seed)
    p, q = random_rows(rng, nodes, vocab), random_rows(rng, 2 * nodes, vocab)
    tokens, q_rows = np.full((nodes, trials), -1), np.full((nodes, trials), -1)
    for node in range(nodes):
        for trial in range(rng.integers(trials + 1) if node % 4 == 0 else trials):
            row = -1 if rng.random() < 0.2 else 2 * node + int(rng.random() < 0.3)
            tokens[node, trial] = rng.choice(vocab, p=None if row < 0 else (q[row] / q[row].sum()).numpy())
            q_rows[node, trial] = row
    owed = rng.random(nodes)
    owed[::2], owed[5::7] = 1.0, 0.0
    uniforms = torch.from_numpy(rng.random((nodes, trials + 1)))
    return Case(
        p=p,
        q=q,
        tokens=torch.from_numpy(tokens).int(),
        q_rows=torch.from_numpy(q_rows).int(),
        uniforms=uniforms,
        owed=torch.from_numpy(owed),
    )


def on_host(case: Case, *, is_decided: bool) -> Trials:
    """The same by the verifiers' own functions, in NumPy."""
    nodes, width = case.tokens.shape
    acceptances, masses = torch.zeros((2, nodes, width), dtype=torch.float64)
    accepted, bonus, owed = torch.full((nodes,), -1), torch.full((nodes,), -1), case.owed.clone()
    for node in range(nodes):
        p = to_distribution(case.p[node].tolist())
        made = 0
        for trial, (token, row) in enumerate(zip(case.tokens[node].tolist(), case.q_rows[node].tolist(), strict=True)):
            if token < 0 or owed[node] == 0:
                break
            q = to_distribution(case.q[row].tolist()) if row >= 0 else None
            chance = acceptance(p, token, q, float(owed[node]))
            acceptances[node, trial] = chance
            if chance >= 1 or (is_decided and case.uniforms[node, trial] < chance):
                accepted[node] = trial
                break
            p, mass = host_residual(p, token, q, float(owed[node]))
            failing = mass + (1.0 - float(owed[node]))
            masses[node, trial], owed[node] = mass, mass / failing if failing > 0 else 1.0
            made += 1
        if accepted[node] < 0 and owed[node] > 0:
            cumulated = np.cumsum(p.probs)
            bonus[node] = int(p.ids[np.searchsorted(cumulated, float(case.uniforms[node, made]) * cumulated[-1], side="right")])
    return Trials(acceptances, masses, accepted, owed, bonus)


def assert_equal(found: Trials, wanted: Trials, atol: float) -> None:
    for name, one, other in zip(Trials._fields, found, wanted, strict=True):
        if name == "owed":  # of no use where a trial succeeded
            one, other = (torch.where(wanted.accepted < 0, value, 0.0) for value in (one, other))
        torch.testing.assert_close(one.double(), other.double(), rtol=0, atol=atol, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("is_decided", [False, True])
def test_trials_are_those_of_the_verifiers(is_decided: bool) -> None:
    case = random_case(1, 80, vocab=11, trials=4)
    wanted = on_host(case, is_decided=is_decided)
    assert {-1, 0, 1} <= set(wanted.accepted.tolist()) and len(set(wanted.bonus.tolist())) >= 10
    assert_equal(case.run("reference", is_decided=is_decided), wanted, EXACT)
    few = random_case(2, 4, vocab=11, trials=3)
    assert_equal(few.run("kernel", is_decided=is_decided), on_host(few, is_decided=is_decided), EXACT)


@pytest.mark.parametrize("by", RUN)
def test_each_node_has_its_own_row_and_may_be_decided_or_not(by: str) -> None:
    case = random_case(5, 6, vocab=9, trials=2)
    both = [on_host(case, is_decided=is_decided) for is_decided in (False, True)]
    decided, order = torch.tensor([0, 1, 1, 0, 0, 1]), torch.tensor([5, 0, 4, 1, 2, 3])
    wanted = Trials(*(torch.where(decided.view(-1, *[1] * (one.dim() - 1)) != 0, other, one) for one, other in zip(*both, strict=True)))
    assert not torch.equal(both[0].accepted, both[1].accepted)
    shuffled = torch.empty_like(padded(case.p))
    shuffled[order] = padded(case.p)
    found = RUN[by](
        *(shuffled, padded(case.q), case.tokens, case.q_rows, case.uniforms), p_rows=order.int(), owed=case.owed, is_decided=decided.int()
    )
    assert_equal(found, wanted, EXACT)


def test_vocabularies_of_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    case = random_case(4, 4, vocab=290, trials=2)
    for place, uniform in enumerate((0.0, 0.2, 0.9, LAST)):
        case.uniforms[place] = uniform
    case.owed[:] = 1.0
    for block in (64, 2048):
        monkeypatch.setattr(module, "_BLOCK", block)
        found = case.run("kernel", is_decided=False)
        assert_equal(found, case.run("reference", is_decided=False), EXACT)
        assert found.bonus.max() > 145


def edges(p: Distribution) -> tuple[list[float], list[int]]:
    """Uniform numbers just inside the share of each token, and the tokens."""
    ends = np.cumsum(p.probs) / np.sum(p.probs)
    starts = np.append(0.0, ends[:-1])
    uniforms = [float(uniform) for pair in zip(starts + EXACT, ends - EXACT, strict=True) for uniform in pair]
    return uniforms, p.ids.repeat(2).tolist()


@pytest.mark.parametrize(("by", "count"), [("kernel", 1), ("reference", 25)])
def test_the_bonus_token_is_drawn_from_the_normalised_residual(by: str, count: int) -> None:
    seen = 0
    for seed in range(count):
        rng = np.random.default_rng(seed)
        p, q = random_rows(rng, 1, 6), random_rows(rng, 1, 6)
        drafted = int((q - p).argmax())
        left, _ = host_residual(to_distribution(p[0].tolist()), drafted, to_distribution(q[0].tolist()))
        tokens, q_rows = [drafted, -1], [0, -1]
        if len(left.ids) > 1:
            tokens[1] = int(left.ids[0])
            left, _ = host_residual(left, tokens[1], None)
        uniforms, wanted = edges(left)
        found = RUN[by](
            padded(p.repeat(len(uniforms), 1)),
            padded(q),
            torch.tensor([tokens] * len(uniforms)).int(),
            torch.tensor([q_rows] * len(uniforms)).int(),
            torch.tensor(uniforms, dtype=torch.float64)[:, None].repeat(1, 3),
            is_decided=torch.zeros(len(uniforms), dtype=torch.int32),
        )
        assert found.bonus.tolist() == wanted
        seen = max(seen, len(left.ids))
    assert seen >= 3


def emitted(by: str, p: Distribution, q: Distribution, vocab: int, trials: int, kind: str) -> torch.Tensor:
    """[vocab] the law of the next token: every outcome of the drafter's draws is a node, and a node's trials all fail until they can't."""
    drafts = list(outcomes(lambda draws: tuple((token, source) for token, source in KINDS[kind](q, trials, draws))))
    nodes = len(drafts)
    tokens, q_rows = torch.full((2, nodes, trials), -1, dtype=torch.int32)
    sources: list[Distribution] = []
    for node, (draft, _) in enumerate(drafts):
        for trial, (token, source) in enumerate(draft):
            tokens[node, trial] = token
            if source is not None:
                q_rows[node, trial] = len(sources)
                sources.append(source)
    dense = torch.zeros((1 + len(sources), vocab), dtype=torch.float64)
    for row, distribution in zip(dense, (p, *sources), strict=True):
        row[distribution.ids] = torch.from_numpy(distribution.probs)
    uniforms = torch.full((nodes, trials + 1), 0.5, dtype=torch.float64)
    rows, decided = torch.zeros((2, nodes), dtype=torch.int32)
    found = RUN[by](padded(dense[:1]), padded(dense[1:]), tokens, q_rows, uniforms, p_rows=rows, is_decided=decided)
    law = torch.zeros(vocab, dtype=torch.float64)
    for node, (draft, probability) in enumerate(drafts):
        reached, left = probability, p
        for trial, (token, source) in enumerate(draft):
            law[token] += reached * found.acceptances[node, trial]
            reached *= 1.0 - float(found.acceptances[node, trial])
            if reached == 0:
                break
            left, mass = host_residual(left, token, source)
            assert found.masses[node, trial] == pytest.approx(mass, abs=EXACT)
        law[left.ids] += reached * torch.from_numpy(left.probs)
    return law


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_emitted_has_the_law_of_the_llm(kind: str) -> None:
    p, q = to_distribution([0.5, 0.1, 0.4]), to_distribution([0.2, 0.7, 0.1])
    law = emitted("kernel", p, q, 3, 2, kind)
    torch.testing.assert_close(law, torch.from_numpy(p.probs), rtol=0, atol=EXACT)


WEIGHTS = st.lists(st.sampled_from([0.0, 0.0, 1e-9, 0.1, 1.0, 1.0, 3.0]), min_size=4, max_size=4).filter(any)


@settings(max_examples=40, deadline=None)
@given(p=WEIGHTS, q=WEIGHTS, kind=st.sampled_from(sorted(KINDS)), trials=st.integers(1, 3))
def test_any_distributions_give_the_law_of_the_llm(p: list[float], q: list[float], kind: str, trials: int) -> None:
    wanted = to_distribution(p)
    law = emitted("reference", wanted, to_distribution(q), 4, trials, kind)
    for token in range(4):
        assert law[token] == pytest.approx(wanted.prob(token), abs=EXACT)


@pytest.mark.parametrize("by", RUN)
def test_what_rounding_empties_stays(by: str) -> None:
    p = padded(torch.tensor([[0.25, 0.0, 0.75]], dtype=torch.float64))
    arguments = (torch.tensor([[0, 2]]).int(), torch.tensor([[0, -1]]).int(), torch.tensor([[1.0, 0.9, 0.5]], dtype=torch.float64))
    # The trial can't fail, as p is q; owing less it can, and then nothing is left.
    found = RUN[by](p, p.clone(), *arguments, owed=torch.tensor([1 - 1e-16]))
    assert (found.accepted.tolist(), found.bonus.tolist()) == ([0], [-1])
    found = RUN[by](p, p.clone(), *arguments, owed=torch.tensor([0.75], dtype=torch.float64))
    assert (found.accepted.tolist(), found.masses[0].tolist(), found.owed.tolist(), found.bonus.tolist()) == ([-1], [0, 0], [0], [-1])
    # A p that is nowhere above q, as rounding may have it: the next trial and the bonus token are p's.
    found = RUN[by](p, padded(torch.tensor([[0.5, 0.0, 0.75]], dtype=torch.float64)), *arguments)
    assert (found.acceptances[0].tolist(), found.masses[0].tolist()) == ([0.5, 0.75], [0.0, 0.25])
    assert (found.accepted.tolist(), found.owed.tolist(), found.bonus.tolist()) == ([-1], [1.0], [0])


@pytest.mark.parametrize("by", RUN)
def test_padding_and_bad_numbers(by: str) -> None:
    p = torch.full((3, 6), 1 / 6, dtype=torch.float64)
    p[1], p[2, 5] = torch.nan, torch.nan
    q = torch.full((2, 6), torch.nan, dtype=torch.float64)
    q[0] = torch.eye(6)[3]
    tokens, rows = torch.tensor([[-1], [2], [3]]).int(), torch.tensor([[-1], [0], [0]]).int()
    uniforms = torch.full((3, 2), 0.99, dtype=torch.float64)
    found = RUN[by](padded(p), padded(q), tokens, rows, uniforms, owed=torch.tensor([1.0, 0.0, 0.5], dtype=torch.float64))
    assert found.bonus.tolist() == [5, -1, -1]
    assert found.accepted.tolist() == [-1, -1, -1]
    assert found.owed[1] == 0 and not found.acceptances[:2].any()


@pytest.mark.parametrize("by", RUN)
def test_without_trials_it_is_a_draw_from_p(by: str) -> None:
    p, none = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]] * 3, dtype=torch.float64), torch.empty((3, 0), dtype=torch.int32)
    uniforms = torch.tensor([[0.0], [0.25], [LAST]], dtype=torch.float64)
    found = RUN[by](padded(p), torch.empty((0, ROW_UNIT), dtype=torch.float64), none, none, uniforms)
    assert found.bonus.tolist() == [1, 3, 3]


def test_cases_that_nothing_covers_are_named() -> None:
    small = (torch.zeros((1, 1)).int(), torch.zeros((1, 1)).int(), torch.zeros((1, 2)).double())
    rows = torch.full((1, 32), 1 / 32).double()
    with pytest.raises(UncoveredCase, match=r"torch\.float64 and q in torch\.float32"):
        residual(rows, rows.float(), *small)
    with pytest.raises(UncoveredCase, match=r"q of shape \(1, 16\)"):
        residual(rows, rows[:, :16].contiguous(), *small)
    with pytest.raises(UncoveredCase, match="a multiple of 16"):
        residual(rows[:, :24].contiguous(), rows[:, :24].contiguous(), *small)
    with pytest.raises(UncoveredCase, match="contiguous"):
        residual(rows.repeat(2, 2)[:, :32], rows, *small)
    with pytest.raises(UncoveredCase, match="524288 is the most"):
        residual(*[torch.empty((1, 600_000), dtype=torch.float64)] * 2, *small)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_there_is_one_variant(target: object) -> None:
    assert len(residual_variants(target)) == 1  # type: ignore[arg-type]
