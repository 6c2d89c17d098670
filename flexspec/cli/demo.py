"""`flexspec demo`: watch token trees being drafted and verified, and see what that gains."""

import typer

from flexspec.cli.exit_status import CHECK_FAILED
from flexspec.cli.json_file import check_writable, write_json
from flexspec.cli.options import DeviceOption, JsonOption

_MODEL = "smollm2-135m"
_DTYPE = "bfloat16"
_MAX_TOKENS = 96
_MAX_LEN = 1024


def demo(device: DeviceOption = None, json_file: JsonOption = None) -> None:
    """Generate from a few built-in prompts with SmolLM2-135M, plain and speculative, and compare the two."""
    from rich.console import Console

    from flexspec import SamplingParams
    from flexspec.cli.compiling import compile_model
    from flexspec.cli.demo_prompts import DEMO_PROMPTS
    from flexspec.cli.demonstration import demonstrate
    from flexspec.strategy import tree_as_json

    check_writable(json_file)
    plain = compile_model(_MODEL, [], dtype=_DTYPE, device=device, max_batch=1, max_len=_MAX_LEN)
    speculative = compile_model(_MODEL, None, dtype=_DTYPE, device=device, max_batch=1, max_len=_MAX_LEN)
    console = Console(highlight=False)
    comparison = demonstrate(plain, speculative, DEMO_PROMPTS, SamplingParams(max_tokens=_MAX_TOKENS), console)
    strategy = speculative.plan.strategy
    content = {
        "model": _MODEL,
        "dtype": strategy.dtype,
        "drafters": list(strategy.drafters),
        "tree": tree_as_json(strategy.tree),
        "plain": {"tokens_per_s": comparison.plain.tokens_per_s},
        "speculative": {
            "tokens_per_s": comparison.speculative.tokens_per_s,
            "tokens_per_step": comparison.speculative.tokens_per_step,
        },
        "speedup": comparison.speedup,
        "identical": comparison.identical,
        "prompts": [
            {"prompt": prompt, "text": output.text, "tokens": output.stats.new_tokens, "tokens_per_step": output.stats.tokens_per_step}
            for prompt, output in zip(DEMO_PROMPTS, comparison.outputs, strict=True)
        ],
    }
    write_json(json_file, content)
    if not comparison.identical:
        raise typer.Exit(CHECK_FAILED)
