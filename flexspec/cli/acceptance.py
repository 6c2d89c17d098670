"""`flexspec acceptance`: how much every verifier accepts of equal trees."""

from typing import Annotated

import typer
from rich.console import Console

from flexspec.cli.json_file import check_writable, write_json
from flexspec.cli.options import (
    DeviceOption,
    DtypeOption,
    JsonOption,
    KvCacheDtypeOption,
    LimitOption,
    ModelArgument,
    PromptsOption,
    ReferenceKernelsOption,
    SsmOption,
    chosen_ssms,
)
from flexspec.cli.prompts_file import read_prompts, stratified
from flexspec.errors import UsageError

_LEARNED = "learned"


def acceptance(
    model: ModelArgument,
    prompts: PromptsOption,
    ssm: SsmOption = None,
    limit: LimitOption = None,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    kv_cache_dtype: KvCacheDtypeOption = "auto",
    allow_reference_kernels: ReferenceKernelsOption = False,
    tree: Annotated[str, typer.Option(metavar="WIDTHS", help="Widths of the trees, the same for all verifiers.")] = "2,2,1",
    temperature: Annotated[
        list[float] | None,
        typer.Option(metavar="T", show_default=False, help="Above 0; repeatable. Without it, 0.6, 0.8 and 1."),
    ] = None,
    top_p: Annotated[float, typer.Option(metavar="P", help="Keep the likeliest tokens that make up P; 1 keeps all.")] = 1.0,
    max_tokens: Annotated[int, typer.Option(metavar="N", help="New tokens of a text at most.")] = 64,
    alpha: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A",
            show_default=False,
            help="Trust of coupled drafts in the shared noise, from 0 to 1, or learned; repeatable. Without it, 0, 0.5, 1 and learned.",
        ),
    ] = None,
    repeat: Annotated[int, typer.Option(metavar="N", help="Texts of each prompt, each with another seed.")] = 1,
    batch: Annotated[int, typer.Option(metavar="N", help="Texts at a time; what is accepted does not depend on it.")] = 8,
    json_file: JsonOption = None,
) -> None:
    """Compare verifiers by what they accept: tokens a step of each one that samples, on the same prompts and equal trees."""
    from flexspec.bench.contenders import ALPHAS, ComparisonConfig
    from flexspec.bench.verifier_comparison import compare_verifiers
    from flexspec.bench.verifier_table import verifier_table

    check_writable(json_file)
    config = ComparisonConfig(
        model=model,
        tree=tree,
        temperatures=temperature or (0.6, 0.8, 1.0),
        ssms=chosen_ssms(ssm),
        dtype=dtype,
        device=device,
        kv_cache_dtype=kv_cache_dtype,
        allow_reference_kernels=allow_reference_kernels,
        top_p=top_p,
        max_tokens=max_tokens,
        alphas=list(dict.fromkeys(_alpha(text) for text in alpha)) if alpha else ALPHAS,
        repeat=repeat,
        batch=batch,
    )
    result = compare_verifiers(config, stratified(read_prompts(prompts), limit), Console(stderr=True).print)
    write_json(json_file, result.to_json())
    console = Console(highlight=False)
    console.print(verifier_table(result))
    settings = result.settings
    console.print(f"{settings['model']} in {settings['dtype']}; drafters {', '.join(settings['drafters'])}; top_p {top_p:g}", markup=False)


def _alpha(text: str) -> float | None:
    """None for `learned`."""
    if text == _LEARNED:
        return None
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"alpha={text!r} is not allowed: give a number from 0 to 1, or {_LEARNED}") from None
