"""Hugging Face as a peer: it generates what `generate` does, and its passes are counted."""

from pathlib import Path

import torch

from flexspec.bench.hf import hugging_face, hugging_face_lookup
from flexspec.bench.measurement import GenerationSettings
from flexspec.bench.peer import PeerTask
from flexspec.models.loaded_model import describe
from flexspec.tree_shape import PLAIN, TreeSpec
from tiny_models import TINY_VOCAB, greedy_reference, random_prompt, tiny


def task(tmp_path: Path, *, eos: int | None = None, max_tokens: int = 12, temperature: float = 0.0) -> PeerTask:
    return PeerTask(
        loaded=describe("tiny", tiny("llama", eos_token_id=eos), None, TINY_VOCAB),
        dtype=torch.float32,
        settings=GenerationSettings(max_tokens=max_tokens, temperature=temperature, top_p=0.9),
        max_len=512,
        scratch=tmp_path,
    )


def test_plain_makes_one_token_a_pass(tmp_path: Path) -> None:
    system = hugging_face(task(tmp_path))
    measured = system.run([random_prompt(6)], seed=0)
    assert (measured.new_tokens, measured.decode_tokens, measured.steps) == (12, 11, 12)
    assert measured.prefill_s > 0 and measured.decode_s > 0 and measured.tokens_per_s > 0
    assert (system.drafters, system.tree) == ((), PLAIN)


def test_end_of_sequence_ends_it(tmp_path: Path) -> None:
    prompt = random_prompt(6)
    reference = greedy_reference(tiny("llama"), prompt, 12)
    eos = reference[5]
    measured = hugging_face(task(tmp_path, eos=eos)).run([prompt], seed=0)
    assert measured.new_tokens == reference.index(eos) + 1


def test_lookup_takes_fewer_passes_for_as_many_tokens(tmp_path: Path) -> None:
    system = hugging_face_lookup(task(tmp_path, max_tokens=120))
    prompt = random_prompt(10)
    prompt += greedy_reference(tiny("llama"), prompt, 100)
    measured = system.run([prompt], seed=0)
    assert measured.new_tokens == 120
    assert measured.steps < 120
    assert (system.name, system.tree) == ("hf-lookup", TreeSpec(widths=(1,) * 8))


def test_sampling_leaves_the_callers_randomness_alone(tmp_path: Path) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    hugging_face(task(tmp_path, temperature=0.8)).run([random_prompt(6)], seed=3)
    assert torch.equal(torch.rand(3), expected)
