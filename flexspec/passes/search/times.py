"""Seconds of operators on a device: equations 1, 2 and 3 of a step's cost, with tables of what is reached."""

import math
from collections.abc import Sequence

import torch

from flexspec.errors import UsageError
from flexspec.passes.search.hardware.description import OPERATOR_KINDS, Hardware, OperatorKind, OperatorTable


class OperatorTimes:
    """Times on devices of one description, each the slowest of its devices.

    Args:
        hardware: the devices.
        dtype: of weights and KV cache, such as `bfloat16`.
        busy: devices that work at the same time, which share the bandwidth of a host's memory; None for all.

    Raises:
        UsageError: if the devices don't compute in that dtype.
    """

    def __init__(self, hardware: Hardware, dtype: str, *, busy: int | None = None) -> None:
        if dtype not in hardware.dtypes:
            raise UsageError(f"dtype={dtype!r} is not allowed on hardware {hardware.name}: give one of {', '.join(hardware.dtypes)}")
        self.hardware = hardware
        self.dtype = dtype
        self.element_bytes = getattr(torch, dtype).itemsize
        self.activation_bytes = hardware.activation_bytes or self.element_bytes
        self._peak = 1e12 * min(device.tflops[dtype] for device in hardware.devices)
        self._bandwidth = 1e9 * min(device.bandwidth_gb_s for device in hardware.devices)
        self._tables = {kind: _table(hardware, kind, dtype, busy or hardware.num_devices) for kind in OPERATOR_KINDS}
        self._found: dict[tuple[OperatorKind, int], tuple[float, float, float]] = {}

    def seconds(self, kind: OperatorKind, tokens: int, flops: float, num_bytes: float, *, launches: int = 1) -> float:
        """Seconds of an operator (equation 1).

        Args:
            kind: its kind.
            tokens: of the pass; of attention, the query rows that read the same keys, as in `OperatorTable`.
            flops: on this device.
            num_bytes: that it reads and writes there.
            launches: calls; 0 for what is part of another one's.
        """
        flops_per_s, bytes_per_s, launch = self._reached(kind, tokens)
        return max(flops / flops_per_s, num_bytes / bytes_per_s) + launches * launch

    def _reached(self, kind: OperatorKind, tokens: int) -> tuple[float, float, float]:
        """FLOP/s, bytes a second, and seconds of a launch."""
        found = self._found.get((kind, tokens))
        if found is None:
            table = self._tables[kind]
            compute, memory, launch = (
                interpolated(table.tokens, values, tokens) for values in (table.compute, table.memory, table.launch_us)
            )
            found = self._found[kind, tokens] = compute * self._peak, memory * self._bandwidth, launch * 1e-6
        return found

    def linear(self, tokens: int, in_features: int, out_features: int, *, launches: int = 1) -> float:
        """Seconds of a linear (equation 2); the features are those on this device, so a division is the caller's."""
        weights = in_features * out_features
        num_bytes = self.element_bytes * weights + self.activation_bytes * tokens * (in_features + out_features)
        return self.seconds("linear", tokens, 2.0 * tokens * weights, num_bytes, launches=launches)

    def attention(self, requests: int, tokens: int, context: int, heads: int, kv_heads: int, head_dim: int) -> float:
        """Seconds of attention over cached keys (equation 3).

        Args:
            requests: that share the pass.
            tokens: of each: the root and the drafts.
            context: keys in the cache of each.
            heads: query heads on this device.
            kv_heads: KV heads on this device.
            head_dim: elements of a head.
        """
        keys = context + tokens / 2
        flops = 4.0 * requests * tokens * heads * head_dim * keys
        cache = 2.0 * requests * kv_heads * head_dim * context * self.element_bytes
        rows = 2.0 * requests * tokens * heads * head_dim * self.activation_bytes
        return self.seconds("attention", tokens * heads // kv_heads, flops, cache + rows)

    def rows(self, kind: OperatorKind, tokens: int, in_columns: int, out_columns: int) -> float:
        """Seconds of what only reads and writes activations: norms, sums, gates."""
        return self.seconds(kind, tokens, 0.0, self.activation_bytes * tokens * (in_columns + out_columns))

    def embedding(self, tokens: int, columns: int) -> float:
        """Seconds of looking tokens up."""
        return self.seconds("embedding", tokens, 0.0, tokens * columns * (self.element_bytes + self.activation_bytes))


def _table(hardware: Hardware, kind: OperatorKind, dtype: str, busy: int) -> OperatorTable:
    """The one that was measured with so many busy devices, or with the next larger number of them."""
    tables = [table for table in hardware.operators if table.kind == kind and table.dtype == dtype]
    assert tables, (hardware.name, kind, dtype)
    return min(tables, key=lambda table: (0 < table.busy < busy, abs(table.busy - busy)))


def interpolated(tokens: Sequence[int], values: Sequence[float], wanted: int) -> float:
    """The value at a number of tokens, between two of the table's in proportion to logarithms; constant beyond its ends."""
    if wanted <= tokens[0]:
        return values[0]
    for (low, below), (high, above) in zip(zip(tokens, values, strict=True), zip(tokens[1:], values[1:], strict=True), strict=False):
        if wanted <= high:
            share = math.log(wanted / low) / math.log(high / low)
            return float(below * (above / below) ** share) if below > 0 and above > 0 else below + share * (above - below)
    return values[-1]
