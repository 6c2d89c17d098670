"""What a graph means is found for texts of any length, or only as long ones are allowed as it means that."""

from pathlib import Path

import numpy as np
import pytest
import torch

import flexspec
from flexspec.errors import UsageError
from flexspec.ir.onnx.importer import import_graph
from flexspec.ir.onnx.longest import ImportedGraph
from flexspec.ir.onnx.read import read_onnx
from flexspec.ir.ops import ATTENTION
from onnx_decoders import LIMIT, TABLE, VOCAB, Form, decoder, reference_logits, saved


def imported(form: Form, folder: Path, longest: int | None = None) -> ImportedGraph:
    path = saved(decoder(form), folder)
    return import_graph(read_onnx(path), path=path, name="tiny", longest=longest)


@pytest.mark.parametrize("window", [4096, 5000, 131072])
@pytest.mark.parametrize("cache", [False, True])
def test_a_window_of_any_size_is_found(window: int, cache: bool, tmp_path: Path) -> None:
    found = imported(Form(mask="window", window=window, cache=cache), tmp_path)
    windows = {node.args[4] for node in found.module.graph.nodes if node.target == ATTENTION}
    assert (windows, found.limit) == ({window}, None)


def test_a_window_that_no_text_reaches_is_none(tmp_path: Path) -> None:
    found = imported(Form(mask="window", window=5000), tmp_path, longest=4999)
    assert {node.args[4] for node in found.module.graph.nodes if node.target == ATTENTION} == {None}
    assert found.limit == 4999


@pytest.mark.parametrize("chunk", [pytest.param(300, marks=pytest.mark.slow), 5000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_chunks_of_any_size_are_refused(chunk: int, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="neither causal nor a sliding window in long texts"):
        imported(Form(mask="chunks", window=chunk), tmp_path)


def test_bias_by_distance_is_so_in_long_texts(tmp_path: Path) -> None:
    assert imported(Form(rotary=False, mask="alibi", positions="input"), tmp_path, longest=TABLE - 2).limit == TABLE - 2


@pytest.mark.parametrize("positions", ["counted", "mask", "input"])
def test_a_table_bounds_the_text(positions: str, tmp_path: Path) -> None:
    found = imported(Form(rotary=False, positions=positions), tmp_path)
    assert (found.limit, found.changes) == (TABLE - 2, False)


@pytest.mark.parametrize("by_length", ["choice", "branch"])
@pytest.mark.parametrize("positions", ["counted", "input"])
def test_frequencies_that_follow_the_length_bound_the_text(by_length: str, positions: str, tmp_path: Path) -> None:
    form = Form(by_length=by_length, positions=positions)
    found = imported(form, tmp_path)
    assert (found.limit, found.changes) == (LIMIT, True)
    ids = np.random.default_rng(0).integers(0, VOCAB, (1, LIMIT))
    expected = reference_logits(decoder(form), ids)
    with torch.no_grad():
        logits = found.module(torch.from_numpy(ids), torch.arange(LIMIT)[None]).numpy()
    assert np.abs(logits - expected).max() < 1e-4 * np.abs(expected).max()


def test_texts_beyond_are_refused_by_name(tmp_path: Path) -> None:
    path = saved(decoder(Form(by_length="choice")), tmp_path)
    with pytest.raises(UsageError, match=f"{LIMIT} positions without its length-dependent rotary embedding changing"):
        flexspec.compile(path, max_len=LIMIT + 1)
