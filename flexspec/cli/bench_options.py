"""Arguments and options of `flexspec bench` alone."""

from pathlib import Path
from typing import Annotated

import typer

BenchModelArgument = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", show_default=False, help="smollm2-135m, a Hugging Face folder or name, or a GGUF or ONNX file."),
]
BenchPromptsOption = Annotated[
    Path | None,
    typer.Option(
        "--prompts", metavar="FILE.jsonl", show_default=False, help='{"id", "category", "turns"} on each line; first turns count.'
    ),
]
SkipOption = Annotated[
    int, typer.Option("--skip", metavar="N", help="Leave out the first N prompts, taken in turn from each category, before --limit counts.")
]
AlsoOption = Annotated[
    list[str] | None,
    typer.Option(
        "--also",
        metavar="[DRAFTERS][@TREE]",
        show_default=False,
        help="Measure these drafters, joined by +, with this tree as well, for example suffix+ngram@auto or @2,2,1; what is left out "
        "is as --ssm and --tree say; repeatable.",
    ),
]
SyntheticOption = Annotated[
    float | None,
    typer.Option(
        "--synthetic-acceptance",
        metavar="P",
        show_default=False,
        help="Measure the engine alone, with drafts that are right with probability P.",
    ),
]
MaxTokensOption = Annotated[
    int, typer.Option("--max-tokens", metavar="N", help="New tokens at most; an end-of-sequence token ends a text earlier.")
]
TemperatureOption = Annotated[float, typer.Option("--temperature", metavar="T", help="0 is greedy.")]
TopPOption = Annotated[float, typer.Option("--top-p", metavar="P", help="Keep the likeliest tokens that make up P; 1 keeps all.")]
BatchOption = Annotated[
    str,
    typer.Option(
        "--batch",
        metavar="N[,N…]",
        help="Prompts at a time, each number measured by itself; speed counts from when all of them have a token until the last has "
        "ended; peers only join in where it is 1.",
    ),
]
RepeatOption = Annotated[
    int, typer.Option("--repeat", metavar="N", help="Measure each prompt N times, in alternating order; medians count.")
]
WarmUpOption = Annotated[int, typer.Option("--warm-up", metavar="N", help="Prompts, or groups of --batch, that every system runs before.")]
AgainstOption = Annotated[
    str,
    typer.Option(
        "--against",
        metavar="NAMES",
        show_default=False,
        help="Peers, separated by commas: hf, hf-lookup, hf-assisted, llama.cpp, llama.cpp-q4_1, llama.cpp-lookup, openvino.",
    ),
]
ProfileOption = Annotated[bool, typer.Option("--profile", help="Show where the time of a decode step goes.")]
PlotOption = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", show_default=False, help="Draw speed-ups and acceptance by depth to this .png or .svg file."),
]
MarkdownOption = Annotated[
    Path | None, typer.Option("--markdown", metavar="FILE", show_default=False, help="Write the report to this file as Markdown.")
]
SaveOption = Annotated[
    Path | None,
    typer.Option("--save", metavar="FILE", show_default=False, help="Write everything that was measured to this file as JSON."),
]
CompareOption = Annotated[
    Path | None,
    typer.Option("--compare", metavar="FILE", show_default=False, help="Compare with what --save wrote to this file earlier."),
]
LoadOption = Annotated[
    Path | None,
    typer.Option("--load", metavar="FILE", show_default=False, help="Measure nothing: report what --save wrote to this file earlier."),
]
