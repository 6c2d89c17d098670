"""Tree attention against causal attention over each token's root path, in Triton's interpreter."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_cases import Case, Request, chain, tree
from flexspec.codegen.cuda.kernels.tree_attention import tree_attention, tree_attention_reference, tree_attention_variants
from flexspec.codegen.cuda.kernels.variant import UncoveredCase
from flexspec.codegen.cuda.targets import TARGETS, find_target

HALF, SINGLE = torch.float16, torch.float32
# Two levels of a draft, a chunk of a prompt and a decoding request: 53 rows of 2 heads share no tile but their own.
MIXED = (tree(37, 9, drafted=26), chain(3, 12), chain(70))


def random_case(draw: st.DrawFn) -> Case:
    """Few rows and keys a tile: the interpreter takes milliseconds a step."""
    kinds = st.sampled_from(["tree", "chunk", "token"])
    requests: list[Request] = []
    for kind in draw(st.lists(kinds, min_size=1, max_size=2)):
        cached = draw(st.integers(0, 100))
        if kind == "tree":
            requests.append(tree(cached, draw(st.integers(1, 8)), draw(st.integers(0, 70))))
        else:
            requests.append(chain(cached, 1 if kind == "token" else draw(st.integers(1, 8))))
    options: dict[str, Any] = {"num_splits": draw(st.sampled_from([1, 2, 4]))}
    if draw(st.booleans()):
        options["window"] = draw(st.integers(1, 90))
    group = draw(st.sampled_from([1, 2, 3, 8]))
    if draw(st.booleans()):
        options["sinks"] = torch.linspace(-2, 4, group)
    return Case(
        *requests,
        seed=draw(st.integers(0, 1000)),
        group=group,
        block_size=draw(st.sampled_from([8, 16, 32, 64])),
        dtype=draw(st.sampled_from([HALF, SINGLE])),
        **options,
    )


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_every_node_attends_to_its_root_path(data: st.DataObject) -> None:
    random_case(data.draw).assert_right(tree_attention)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_reference_does_so_too(data: st.DataObject) -> None:
    random_case(data.draw).assert_right(tree_attention_reference)


@pytest.mark.parametrize(
    ("requests", "options"),
    [
        ((chain(700), tree(333, 4, drafted=30)), {"num_splits": 4}),
        ((chain(700),), {"window": 200, "num_splits": 2}),
        ((tree(0, 1),), {"num_splits": 4}),
        ((chain(0, 20),), {}),
        ((tree(10, 3, drafted=1021),), {}),
    ],
    ids=["long", "long with a window", "one slot", "prompt", "tail of 1024"],
)
def test_lengths(requests: tuple[Request, ...], options: dict[str, Any]) -> None:
    Case(*requests, dtype=HALF, **options).assert_right(tree_attention)


@pytest.mark.parametrize("head_dim", [16, 64, 72, 80, 96, 128, 256])
def test_head_sizes(head_dim: int) -> None:
    Case(tree(40, 3, drafted=2), head_dim=head_dim, dtype=SINGLE if head_dim == 96 else HALF, scale=0.1).assert_right(tree_attention)
