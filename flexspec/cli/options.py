"""Arguments and options that several commands share."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from flexspec.errors import UsageError

_NO_DRAFTERS = "none"

ModelArgument = Annotated[
    str,
    typer.Argument(metavar="MODEL", show_default=False, help="smollm2-135m, a Hugging Face folder or name, or a GGUF or ONNX file."),
]
SsmOption = Annotated[
    list[str] | None,
    typer.Option(
        "--ssm",
        metavar="SSM",
        show_default=False,
        help="A drafter: suffix, suffix:history, ngram, prune:K (the model's own first K layers), a model, or none. Repeat for "
        "several. Without it, the model's default (smollm2-135m: suffix and smollm2-135m:head).",
    ),
]
PromptsOption = Annotated[
    Path,
    typer.Option(
        "--prompts", metavar="FILE.jsonl", show_default=False, help='{"id", "category", "turns"} on each line; first turns count.'
    ),
]
LimitOption = Annotated[
    int | None, typer.Option("--limit", metavar="N", show_default=False, help="This many prompts, taken in turn from each category.")
]
DtypeOption = Annotated[
    str | None,
    typer.Option("--dtype", metavar="DTYPE", show_default=False, help="float32 or bfloat16, on a GPU float16 too; bfloat16 if not given."),
]
DeviceOption = Annotated[
    str | None, typer.Option("--device", metavar="DEVICE", show_default=False, help="cpu, or cuda: a GPU; cpu if not given.")
]
KvCacheDtypeOption = Annotated[
    str,
    typer.Option(
        "--kv-cache-dtype", metavar="DTYPE", help="Of the KV cache: auto, as --dtype; or fp8 on a GPU: half the memory, other numbers."
    ),
]
TreeOption = Annotated[
    str | None,
    typer.Option(
        "--tree",
        metavar="auto|WIDTHS|LIMITS",
        show_default=False,
        help="The token tree: auto, shaped anew at every step; widths of a static one, for example 2,2,1; or some limits "
        "of an adaptive one, for example depth=8,branch=2,budget=16. Without it, auto if the verifier allows that.",
    ),
]
ReferenceKernelsOption = Annotated[
    bool,
    typer.Option(
        "--allow-reference-kernels",
        help="On a GPU, run slow references where a model has heads that no kernel is made for, and warn of it.",
    ),
]
VerifierOption = Annotated[
    str | None,
    typer.Option(
        "--verifier",
        metavar="NAME",
        show_default=False,
        help="auto, greedy, coupled, mss, without_replacement, point_mass or traversal; auto if not given.",
    ),
]
StatisticsOption = Annotated[
    Path | None,
    typer.Option(
        "--statistics",
        metavar="FILE",
        show_default=False,
        help="What is known of the drafters' acceptance: loaded if the file exists, and written at the end.",
    ),
]
LogEveryOption = Annotated[
    float | None,
    typer.Option("--log-every", metavar="SECONDS", show_default=False, help="Show on stderr how the last steps went, this often."),
]
JsonOption = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", show_default=False, help="Write the results to this file as well.")
]


def chosen_ssms(ssms: Sequence[str] | None) -> list[str] | None:
    """What `--ssm` means for `flexspec.compile`: None, what ships for the model, if it was not given; [] for `none`.

    Raises:
        UsageError: if `none` is not alone.
    """
    if not ssms:
        return None
    if _NO_DRAFTERS not in ssms:
        return list(ssms)
    if len(ssms) > 1:
        raise UsageError(f"--ssm {_NO_DRAFTERS} is not allowed together with other drafters ({', '.join(ssms)}): leave it out")
    return []
