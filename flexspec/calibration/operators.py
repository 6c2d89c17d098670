"""Tables of what operators take, measured on chains of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from statistics import median

from scipy.optimize import isotonic_regression

from flexspec.calibration.chains import Chain, Setting, Work, attention_chain, embedding_chain, fused_chain, linear_chain
from flexspec.calibration.crew import Crew, measured
from flexspec.passes.search.hardware import OperatorKind

ACTIVATION_BYTES = 4
"""Activations are float32 on a CPU, whatever the weights are."""
_LEAST_S = 1e-9
_KV_HEADS = 4
_GROUP = 4


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What is measured.

    Attributes:
        tokens: of a pass, ascending.
        small: features of a small linear, at both ends.
        large: features of a large one.
        contexts: a short and a long one.
        head_dim: of attention.
        columns: of norms and look-ups.
        budget_s: about how long one measurement may take.
        sweeps: how often all operators are measured, far apart in time: a machine that is shared wanders in speed.
    """

    tokens: tuple[int, ...] = (1, 2, 4, 8, 12, 15, 17, 20, 28, 32, 64, 128, 256)
    small: tuple[int, int] = (512, 512)
    large: tuple[int, int] = (2048, 4096)
    contexts: tuple[int, int] = (256, 2048)
    head_dim: int = 64
    columns: int = 512
    budget_s: float = 0.03
    sweeps: int = 3


@dataclass(frozen=True, kw_only=True)
class Point:
    """One operator at one number of tokens.

    Attributes:
        tokens: as in `OperatorTable`.
        flops: of a call.
        num_bytes: that it reads and writes.
        seconds: of a call.
        smaller: a smaller one with the same tokens, which tells what a call takes besides; None if that is nothing.
    """

    tokens: int
    flops: float
    num_bytes: float
    seconds: float
    smaller: "Point | None" = None


def measure_operators(setting: Setting, crew: Crew, sizes: Sizes) -> dict[OperatorKind, list[Point]]:
    """One sweep: points of every kind of operator, in the order of tokens."""
    return {
        "linear": _linears(setting, crew, sizes),
        "attention": _attention(setting, crew, sizes),
        "norm": _fused(setting, crew, sizes, "norm"),
        "elementwise": _fused(setting, crew, sizes, "gate and sum"),
        "embedding": _embeddings(setting, crew, sizes),
    }


def _per_call(chain: Chain, crew: Crew, sizes: Sizes, tokens: int, *, context: int = 0) -> float:
    run = chain.passes(tokens, context=context)
    return measured(run, crew, budget_s=sizes.budget_s, in_thread=chain.threads == 1) / chain.calls


def _linears(setting: Setting, crew: Crew, sizes: Sizes) -> list[Point]:
    chains = [linear_chain(setting, *features) for features in (sizes.small, sizes.large)]

    def point(tokens: int, which: int) -> Point:
        first, second = (sizes.small, sizes.large)[which]
        return Point(
            tokens=tokens,
            flops=2.0 * tokens * first * second,
            num_bytes=float(setting.dtype.itemsize * first * second + ACTIVATION_BYTES * tokens * (first + second)),
            seconds=_per_call(chains[which], crew, sizes, tokens),
        )

    return [replace(point(tokens, 1), smaller=point(tokens, 0)) for tokens in sizes.tokens]


def _attention(setting: Setting, crew: Crew, sizes: Sizes) -> list[Point]:
    """Query rows that read the same keys: a few with a query head for each KV head, more with as many as is usual."""
    width = _KV_HEADS * sizes.head_dim
    chains = {
        (group, context): attention_chain(setting, heads=group * _KV_HEADS, kv_heads=_KV_HEADS, head_dim=sizes.head_dim, context=context)
        for group in (1, _GROUP)
        for context in sizes.contexts
    }

    def point(rows: int, context: int) -> Point:
        group = _GROUP if rows >= _GROUP else 1
        tokens = rows // group
        return Point(
            tokens=tokens * group,
            flops=4.0 * tokens * group * width * (context + tokens / 2),
            num_bytes=2.0 * width * context * setting.dtype.itemsize + 2.0 * ACTIVATION_BYTES * tokens * group * width,
            seconds=_per_call(chains[group, context], crew, sizes, tokens, context=context),
        )

    short, long = sizes.contexts
    return [replace(point(rows, long), smaller=point(rows, short)) for rows in sizes.tokens]


def _fused(setting: Setting, crew: Crew, sizes: Sizes, work: Work) -> list[Point]:
    """What linears take longer for work that code generation moves into them."""
    columns, out_columns = sizes.columns, sizes.columns // 4
    moved = 2 * columns if work == "norm" else 3 * (columns + out_columns)
    plain, chain = (fused_chain(setting, columns, out_columns, one) for one in ("plain", work))

    def point(tokens: int) -> Point:
        seconds = _per_call(chain, crew, sizes, tokens) - _per_call(plain, crew, sizes, tokens)
        return Point(tokens=tokens, flops=0.0, num_bytes=float(ACTIVATION_BYTES * tokens * moved), seconds=max(seconds, _LEAST_S))

    return [point(tokens) for tokens in sizes.tokens]


def _embeddings(setting: Setting, crew: Crew, sizes: Sizes) -> list[Point]:
    chain = embedding_chain(setting, sizes.columns)
    row_bytes = sizes.columns * (setting.dtype.itemsize + ACTIVATION_BYTES)

    def point(tokens: int) -> Point:
        return Point(tokens=tokens, flops=0.0, num_bytes=float(tokens * row_bytes), seconds=_per_call(chain, crew, sizes, tokens))

    return [point(tokens) for tokens in sizes.tokens]


def merged(sweeps: Sequence[Mapping[OperatorKind, Sequence[Point]]]) -> dict[OperatorKind, list[Point]]:
    """Points of several sweeps as one: medians, since what else a machine does makes its speed wander."""
    return {kind: _merged([sweep[kind] for sweep in sweeps]) for kind in sweeps[0]}


def _merged(sweeps: Sequence[Sequence[Point]]) -> list[Point]:
    """A point for every number of tokens, with times that don't fall while the tokens rise."""
    points = {sames[0].tokens: sames for sames in zip(*sweeps, strict=True)}  # some numbers of rows come to the same
    first = [sames[0] for sames in points.values()]
    seconds = _rising([median(one.seconds for one in sames) for sames in points.values()])
    if first[0].smaller is None:
        return [replace(one, seconds=its) for one, its in zip(first, seconds, strict=True)]
    small = _rising([median(one.smaller.seconds for one in sames if one.smaller) for sames in points.values()])
    return [
        replace(one, seconds=its, smaller=replace(one.smaller, seconds=other))
        for one, its, other in zip(first, seconds, small, strict=True)
        if one.smaller is not None
    ]


def _rising(seconds: Sequence[float]) -> list[float]:
    """The nearest times, in proportion, that never fall."""
    return [exp(float(one)) for one in isotonic_regression([log(one) for one in seconds]).x]
