"""Drafts of a given acceptance: measured, exact, and silent where the text is another."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from compile_once import ADAPTIVE, compile_once, compiled, model, prompt
from flexspec import LLM, Output, SamplingParams
from flexspec.config import SamplingParams as Params
from flexspec.runtime.drafters.base import DraftRequest
from flexspec.runtime.drafters.synthetic import SyntheticDrafter
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.token_tree import TokenTree
from flexspec.tree_shape import Tree, TreeLimits, TreeSpec

__all__ = ["compile_once"]

PROMPT, OUTPUT = [5, 6, 7], list(range(10, 90))


def asked(
    drafter: SyntheticDrafter, tree: Tree, *, place: int = 0, seed: int = 3, text: Sequence[int] | None = None, name: int = 0
) -> TokenTree:
    """The tree for a request that has emitted `place` tokens of the recorded output."""
    tokens = [*PROMPT, *(OUTPUT[:place] if text is None else text)]
    sampler = RequestSampler(Params(), seed=seed, vocab_limit=100)
    request = DraftRequest(request_id=name, tokens=tokens, sampler=sampler, spec=tree, prompt_length=len(PROMPT))
    (proposed,) = drafter.propose([request])
    return proposed


def told(acceptance: float) -> SyntheticDrafter:
    drafter = SyntheticDrafter(acceptance)
    drafter.record(PROMPT, 3, OUTPUT)
    return drafter


def test_certain_drafts_are_the_text_and_impossible_ones_are_not() -> None:
    widths = TreeSpec(widths=(2, 2, 1))
    tree = asked(told(1.0), widths, place=2)
    assert (len(tree.tokens), tree.tokens[0]) == (1 + widths.num_nodes, OUTPUT[1])
    assert not tree.has_twins()
    path = [0]
    while children := tree.children()[path[-1]]:
        path.append(next(iter(children.values())))  # the first child
    assert [tree.tokens[node] for node in path[1:]] == OUTPUT[2:5]
    never = asked(told(0.0), widths, place=2)
    assert len(never.tokens) == len(tree.tokens) and not never.has_twins()
    assert OUTPUT[2] not in [token for token, parent in zip(never.tokens, never.parents, strict=True) if parent == 0]


def test_the_same_tokens_are_right_at_every_step_and_after_the_end_none() -> None:
    drafter, chain = told(0.5), TreeSpec(widths=(1, 1, 1))
    right = [asked(drafter, chain, place=place).tokens[1] == OUTPUT[place] for place in range(len(OUTPUT))]
    assert 0.25 < np.mean(right) < 0.75
    for place in range(len(OUTPUT) - 3):
        tokens = asked(drafter, chain, place=place).tokens[1:]
        count = [*right[place : place + 3], False].index(False)  # below the first wrong token nothing counts
        assert list(tokens[:count]) == OUTPUT[place : place + count]
        assert count == 3 or tokens[count] != OUTPUT[place + count]
    assert len(asked(drafter, chain, place=len(OUTPUT) - 1).tokens) == 4
    assert asked(drafter, TreeLimits(depth=5, branch=3, budget=4), place=3).is_chain()


def test_another_text_gets_no_drafts() -> None:
    drafter, chain = told(1.0), TreeSpec(widths=(1,))
    assert drafter.knows(PROMPT, 3) and not drafter.knows(PROMPT, 4)
    assert asked(drafter, chain, place=2, name=1).num_drafted == 1
    assert drafter.lost_share == 0
    assert asked(drafter, chain, text=[*OUTPUT[:2], 99], name=1).num_drafted == 0
    assert asked(drafter, chain, place=4, name=1).num_drafted == 0  # it left once and for all
    assert asked(drafter, chain, seed=4, name=2).num_drafted == 0
    assert drafter.lost_share == 0.75
    drafter.release(1)
    assert asked(drafter, chain, place=2, name=1).num_drafted == 1
    drafter.reset_counts()
    assert drafter.lost_share == 0


@pytest.fixture(scope="module")
def plain() -> LLM:
    return compiled(model(), dtype="float32")


@pytest.mark.parametrize("tree", [[1, 1, 1], [2, 2, 1], ADAPTIVE], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_are_plain_decodings_and_acceptance_is_as_asked_for(plain: LLM, tree: Any, temperature: float) -> None:
    prompts = [list(prompt(length)) for length in (5, 9)]
    params = [SamplingParams(max_tokens=100, temperature=temperature, seed=seed, ignore_eos=True) for seed in (1, 2)]
    texts: list[Output] = plain.generate(prompts, params)
    drafter = SyntheticDrafter(0.6)
    for text, seed in zip(texts, (1, 2), strict=True):
        drafter.record(text.prompt_token_ids, seed, text.token_ids)
    outputs = compiled(model(), [drafter], dtype="float32", tree=tree).generate(prompts, params)
    assert [output.token_ids for output in outputs] == [text.token_ids for text in texts]
    assert drafter.lost_share == 0
    counts = outputs[0].stats.acceptance
    counts.add(outputs[1].stats.acceptance)
    if isinstance(tree, list):
        shares = [count.accepted_per_step for count in counts.by_depth().values()]
        assert len(shares) == 3 and all(0.4 < share < 0.8 for share in shares)
