"""Arguments and options that several commands share."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from flexspec.errors import UsageError

_NO_DRAFTERS = "none"

ModelArgument = Annotated[
    str,
    typer.Argument(metavar="MODEL", show_default=False, help="smollm2-135m, a Hugging Face folder or name, or a GGUF file."),
]
SsmOption = Annotated[
    list[str] | None,
    typer.Option(
        "--ssm",
        metavar="SSM",
        show_default=False,
        help="A drafter: a model, prune:K (the model's own first K layers), ngram, or none. Repeat for several. "
        "Without it, what ships for the model.",
    ),
]
LimitOption = Annotated[
    int | None, typer.Option("--limit", metavar="N", show_default=False, help="This many prompts, taken in turn from each category.")
]
DtypeOption = Annotated[
    str | None, typer.Option("--dtype", metavar="DTYPE", show_default=False, help="float32 or bfloat16; bfloat16 if not given.")
]
TreeOption = Annotated[
    str | None,
    typer.Option("--tree", metavar="WIDTHS", show_default=False, help="Widths of the token tree, for example 2,2,1."),
]
VerifierOption = Annotated[
    str | None,
    typer.Option("--verifier", metavar="NAME", show_default=False, help="auto, greedy, coupled or mss; auto if not given."),
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
