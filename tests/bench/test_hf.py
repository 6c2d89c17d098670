"""Hugging Face as a peer: it generates what `generate` does, and its passes are counted."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flexspec.bench.hf import HuggingFaceSystem, hugging_face, hugging_face_assisted, hugging_face_lookup
from flexspec.bench.measurement import GenerationSettings
from flexspec.bench.peer import PeerTask, PeerUnavailable
from flexspec.models.loaded_model import LoadedModel, describe
from flexspec.models.prune import prune_layers
from flexspec.tree_shape import PLAIN, TreeSpec
from tiny_models import TINY_VOCAB, greedy_reference, random_prompt, tiny


def task(
    tmp_path: Path,
    *,
    module: Any = None,
    eos: int | None = None,
    max_tokens: int = 12,
    temperature: float = 0.0,
    assistant: LoadedModel | None = None,
) -> PeerTask:
    return PeerTask(
        loaded=describe("tiny", module or tiny("llama", eos_token_id=eos), None, TINY_VOCAB),
        dtype=torch.float32,
        settings=GenerationSettings(max_tokens=max_tokens, temperature=temperature, top_p=1.0),
        max_len=512,
        scratch=tmp_path,
        assistant=assistant,
    )


def confident() -> nn.Module:
    """A tiny model that is sure of every token: assistants stop drafting where they are not."""
    module: Any = tiny("llama")
    module.lm_head.weight.data *= 40
    return module  # type: ignore[no-any-return]


def with_passes(system: HuggingFaceSystem) -> list[int]:
    """Query tokens of every pass of the large model from now on."""
    passes: list[int] = []
    system._module.model.register_forward_pre_hook(
        lambda _module, _args, options: passes.append(options["input_ids"].shape[1]), with_kwargs=True
    )
    return passes


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
    module = tiny("llama", eos_token_id=eos)
    assistant = describe("itself", tiny("llama"), None, TINY_VOCAB)
    for make in (hugging_face, hugging_face_lookup, hugging_face_assisted):
        measured = make(task(tmp_path, module=module, assistant=assistant)).run([prompt], seed=0)
        assert measured.new_tokens == reference.index(eos) + 1


def test_lookup_takes_fewer_passes_for_as_many_tokens(tmp_path: Path) -> None:
    system = hugging_face_lookup(task(tmp_path, max_tokens=120))
    passes = with_passes(system)
    prompt = random_prompt(10)
    prompt += greedy_reference(tiny("llama"), prompt, 100)
    measured = system.run([prompt], seed=0)
    assert measured.new_tokens == 120
    assert measured.steps == len(passes) < 120
    assert (system.name, system.tree) == ("hf-lookup", TreeSpec(widths=(1,) * 8))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_assisted_by_itself_it_takes_few_passes(tmp_path: Path, temperature: float) -> None:
    module = confident()
    assistant = describe("itself", prune_layers(module, 2), None, TINY_VOCAB)  # all of its layers
    system = hugging_face_assisted(task(tmp_path, module=module, max_tokens=44, temperature=temperature, assistant=assistant))
    passes = with_passes(system)
    measured = system.run([random_prompt(6)], seed=1)
    assert measured.new_tokens == 44
    # 20 drafts and a bonus token a pass; prefill's pass verifies the first drafts, so its tokens are none of decoding's.
    assert measured.steps == len(passes) <= 4
    assert measured.decode_tokens < 44 - 1
    assert (system.name, system.drafters, system.tree) == ("hf-assisted", ("itself",), TreeSpec(widths=(1,) * 20))


def test_assistants_change_no_greedy_text(tmp_path: Path) -> None:
    module = confident()
    assistant = describe("prune:1", prune_layers(module, 1), None, TINY_VOCAB)
    prompt = random_prompt(6)
    reference = greedy_reference(module, prompt, 24)
    eos = reference[-1]
    measured = hugging_face_assisted(
        replace(
            task(tmp_path, module=module, max_tokens=40, assistant=assistant),
            loaded=replace(describe("tiny", module, None, TINY_VOCAB), eos_token_ids=(eos,)),
        )
    ).run([prompt], seed=0)
    assert measured.new_tokens == reference.index(eos) + 1
    assert measured.steps >= 2


def test_without_a_fitting_assistant(tmp_path: Path) -> None:
    with pytest.raises(PeerUnavailable, match="no drafter of this run is a model that runs by itself"):
        hugging_face_assisted(task(tmp_path))
    other = describe("wide", tiny("llama", vocab=TINY_VOCAB + 8), None, TINY_VOCAB + 8)
    with pytest.raises(PeerUnavailable, match="wide has 296, and tiny has 288"):
        hugging_face_assisted(task(tmp_path, assistant=other))


def test_a_checkpoints_own_settings_play_no_part(tmp_path: Path) -> None:
    prompt = random_prompt(6)
    reference = greedy_reference(tiny("llama"), prompt, 12)
    module = tiny("llama", eos_token_id=reference[-1])
    module.generation_config.repetition_penalty = 50.0
    module.generation_config.min_new_tokens = 12
    measured = hugging_face(task(tmp_path, module=module)).run([prompt], seed=0)
    assert measured.new_tokens == reference.index(reference[-1]) + 1
    assert module.generation_config.repetition_penalty == 50.0  # the caller's module stays as it is


def test_sampling_leaves_the_callers_randomness_alone(tmp_path: Path) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    hugging_face(task(tmp_path, temperature=0.8)).run([random_prompt(6)], seed=3)
    assert torch.equal(torch.rand(3), expected)
