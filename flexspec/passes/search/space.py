"""What is searched: replicas, stages, tensor degrees, micro-batches and where drafters run, for a workload on so many devices."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product

from flexspec.errors import UsageError
from flexspec.parallel import BESIDE, OWN_DEVICE

LATENCY = "latency"
THROUGHPUT = "throughput"
OBJECTIVES = (LATENCY, THROUGHPUT)
AUTO = "auto"
FP8 = "fp8"
KV_CACHE_DTYPES = (AUTO, FP8)
_MOST_BATCH = 65536
_MOST_TREE = 256
_MICRO_BATCHES_A_STAGE = 2
"""More of them than this make every pass smaller and keep no device busier."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What the model is for.

    Attributes:
        objective: `latency`, the least time per token of a request; `throughput`, the most tokens a second of all requests.
        batch: requests under way at once; for `throughput` the most, and fewer are tried.
        context: tokens of a prompt.
        new_tokens: of an answer.
        max_latency_ms: most milliseconds per token of a request; None for any.
        max_tree: most drafted nodes of a tree.
        dtype: of weights, and of the KV cache if that is `auto`.
        kv_cache_dtype: `auto`, or `fp8`. It is no choice of the search: an 8-bit cache makes a model compute other numbers, which is
            for the user to want; it is priced as given.

    Raises:
        UsageError: if a value is not allowed.
    """

    objective: str = LATENCY
    batch: int = 1
    context: int = 512
    new_tokens: int = 128
    max_latency_ms: float | None = None
    max_tree: int = 64
    dtype: str = "bfloat16"
    kv_cache_dtype: str = AUTO

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise UsageError(f"objective={self.objective!r} is not allowed: give one of {', '.join(OBJECTIVES)}")
        for name, least, most in (("batch", 1, _MOST_BATCH), ("context", 1, 2**31), ("new_tokens", 1, 2**31), ("max_tree", 0, _MOST_TREE)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise UsageError(f"{name}={value!r} is not allowed: give a whole number from {least} to {most}")
        if self.kv_cache_dtype not in KV_CACHE_DTYPES:
            raise UsageError(f"kv_cache_dtype={self.kv_cache_dtype!r} is not allowed: give one of {', '.join(KV_CACHE_DTYPES)}")
        bound = self.max_latency_ms
        if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int | float) or not 0 < bound < float("inf")):
            raise UsageError(f"max_latency_ms={bound!r} is not allowed: give a number of milliseconds above 0")

    @property
    def length(self) -> int:
        """Tokens of a request at its end."""
        return self.context + self.new_tokens

    @property
    def mean_context(self) -> int:
        """Tokens of a request halfway."""
        return self.context + self.new_tokens // 2


@dataclass(frozen=True, order=True)
class Shape:
    """How many of everything.

    Attributes:
        dp: replicas.
        pp: stages of each.
        tp: devices of a stage.
        micro_batches: under way at once in a replica.
        requests: of the fullest micro-batch.
        batch: requests under way in all.
    """

    dp: int
    pp: int
    tp: int
    micro_batches: int
    requests: int
    batch: int


@dataclass(frozen=True, kw_only=True)
class DraftOption:
    """Drafters, and where each runs: `beside the model` or `own device`."""

    placement: tuple[tuple[str, str], ...] = ()

    @property
    def drafters(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(name for name, _ in self.placement)

    @cached_property
    def own_devices(self) -> tuple[str, ...]:
        """Those that have a device of their own."""
        return tuple(name for name, where in self.placement if where == OWN_DEVICE)


def draft_options(drafters: Sequence[str], models: Sequence[str], devices: int) -> list[DraftOption]:
    """Every set of drafters with every placement, none first; drafters that are no models run beside the model."""
    options = []
    for number in range(len(drafters) + 1):
        for chosen in combinations(drafters, number):
            for places in product(*((BESIDE, OWN_DEVICE) if name in models else (BESIDE,) for name in chosen)):
                option = DraftOption(placement=tuple(zip(chosen, places, strict=True)))
                if len(option.own_devices) < devices:
                    options.append(option)
    return options


def degrees(devices: int, devices_of_a_host: int) -> list[int]:
    """Tensor-parallel degrees: any within a host, and whole numbers of hosts that divide all of them."""
    within = list(range(1, min(devices_of_a_host, devices) + 1))
    hosts = devices // devices_of_a_host
    return within + [number * devices_of_a_host for number in range(2, hosts + 1) if hosts % number == 0]


def shapes(workload: Workload, devices: int, *, tp: int, pp: int, own_devices: int) -> Iterator[Shape]:
    """What is tried with stages of `tp` devices in pipelines of `pp`, and drafters on devices of their own.

    A batch that is given in full falls into parts as even as can be, and counts as its fullest part. For throughput, micro-batches of
    1, 2, 4, … requests are tried as well. Of replicas and micro-batches every number up to 4, then about two of each doubling, the most
    that is possible, and a micro-batch for each stage.
    """
    size = pp * tp + own_devices
    most = workload.batch
    most_replicas = min(devices // size, most)
    most_in_flight = min(1 if pp == 1 else _MICRO_BATCHES_A_STAGE * pp, most)
    for micro_batches in sorted({*_sizes(most_in_flight), min(pp, most_in_flight)}):
        found: set[Shape] = set()
        for dp in _sizes(most_replicas):
            share = -(-most // dp)
            if micro_batches <= share:
                found.add(Shape(dp, pp, tp, micro_batches, -(-share // micro_batches), most))
            if workload.objective == THROUGHPUT:
                each = most // (dp * micro_batches)
                for requests in (1 << power for power in range(each.bit_length())):
                    found.add(Shape(dp, pp, tp, micro_batches, requests, dp * micro_batches * requests))
        yield from sorted(found)


def _sizes(most: int) -> Iterator[int]:
    """1, 2, 3, 4, 6, 8, 12, … below `most`, and `most`."""
    power = 1
    while power < most:
        yield power
        if 2 <= power and power * 3 // 2 < most:
            yield power * 3 // 2
        power *= 2
    if most:
        yield most
