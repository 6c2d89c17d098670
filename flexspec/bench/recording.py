"""Plain decoding's texts, for drafts of synthetic acceptance."""

from collections.abc import Sequence

from flexspec.bench.flexspec_system import request_params
from flexspec.bench.interleave import Say
from flexspec.bench.measurement import GenerationSettings
from flexspec.bench.prompt_groups import PromptGroup
from flexspec.runtime.drafters.synthetic import SyntheticDrafter
from flexspec.runtime.engine import Engine


def record_plain(plain: Engine, drafter: SyntheticDrafter, groups: Sequence[PromptGroup], settings: GenerationSettings, say: Say) -> None:
    """Tell the drafter what plain decoding emits after every prompt of the groups, with the seeds they run with.

    Args:
        plain: decodes plainly.
        drafter: is told.
        groups: that will run.
        settings: what is generated.
        say: is told what happens.
    """
    for group in groups:
        asked = [(prompt, group.seed + place) for place, prompt in enumerate(group.token_ids)]
        missing = [(prompt, seed) for prompt, seed in asked if not drafter.knows(prompt, seed)]
        if not missing:
            continue
        say(f"recording what plain decoding emits after {', '.join(prompt.id for prompt in group.prompts)}")
        outputs = plain.generate([prompt for prompt, _ in missing], [request_params(settings, seed) for _, seed in missing])
        for (prompt, seed), output in zip(missing, outputs, strict=True):
            output.raise_for_error()
            drafter.record(prompt, seed, output.token_ids)
