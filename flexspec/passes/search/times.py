"""Seconds of operators on a device: equations 1, 2 and 3 of a step's cost, with tables of what is reached."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from flexspec.errors import UsageError
from flexspec.passes.search.hardware.description import OPERATOR_KINDS, Hardware, OperatorKind, OperatorTable
from flexspec.passes.search.space import AUTO

_HALF_BYTES = 2


class OperatorTimes:
    """Times on devices of one description, each the slowest of its devices.

    Args:
        hardware: the devices.
        dtype: of weights and KV cache, such as `bfloat16`.
        busy: devices that work at the same time, which share the bandwidth of a host's memory; None for all.
        kv_cache_dtype: `auto` for that dtype, or `fp8`.

    Raises:
        UsageError: if the devices don't compute in that dtype, or have no such KV cache.
    """

    def __init__(self, hardware: Hardware, dtype: str, *, busy: int | None = None, kv_cache_dtype: str = AUTO) -> None:
        if dtype not in hardware.dtypes:
            raise UsageError(f"dtype={dtype!r} is not allowed on hardware {hardware.name}: give one of {', '.join(hardware.dtypes)}")
        self.hardware = hardware
        self.dtype = dtype
        self.element_bytes = getattr(torch, dtype).itemsize
        self.cache_bytes = self.element_bytes if kv_cache_dtype == AUTO else _cache_bytes(hardware, self.element_bytes, kv_cache_dtype)
        self.activation_bytes = hardware.activation_bytes or self.element_bytes
        self._peak = 1e12 * min(device.tflops[dtype] for device in hardware.devices)
        self._bandwidth = 1e9 * min(device.bandwidth_gb_s for device in hardware.devices)
        self._tables = {kind: _table(hardware, kind, dtype, busy or hardware.num_devices) for kind in OPERATOR_KINDS}
        self._found: dict[tuple[OperatorKind, tuple[int, ...], bytes], tuple[Any, Any, Any]] = {}

    def seconds(self, kind: OperatorKind, tokens: Any, flops: Any, num_bytes: Any, *, launches: int = 1) -> Any:
        """Seconds of an operator (equation 1); like all of these, of one pass, or an array of those of many.

        Args:
            kind: its kind.
            tokens: of the pass; of attention, the query rows that read the same keys, as in `OperatorTable`.
            flops: on this device.
            num_bytes: that it reads and writes there.
            launches: calls; 0 for what is part of another one's.
        """
        flops_per_s, bytes_per_s, launch = self._reached(kind, tokens)
        return np.maximum(flops / flops_per_s, num_bytes / bytes_per_s) + launches * launch

    def _reached(self, kind: OperatorKind, tokens: Any) -> tuple[Any, Any, Any]:
        """FLOP/s, bytes a second, and seconds of a launch."""
        key = (kind, np.shape(tokens), np.asarray(tokens).tobytes())
        found = self._found.get(key)
        if found is None:
            table = self._tables[kind]
            compute, memory, launch = (
                interpolated(table.tokens, values, tokens) for values in (table.compute, table.memory, table.launch_us)
            )
            found = self._found[key] = compute * self._peak, memory * self._bandwidth, launch * 1e-6
        return found

    def linear(self, tokens: Any, in_features: int, out_features: int, *, launches: int = 1) -> Any:
        """Seconds of a linear (equation 2); the features are those on this device, so a division is the caller's."""
        weights = in_features * out_features
        num_bytes = self.element_bytes * weights + self.activation_bytes * tokens * (in_features + out_features)
        return self.seconds("linear", tokens, 2.0 * tokens * weights, num_bytes, launches=launches)

    def experts(self, tokens: Any, columns: int, *, num_experts: int, top_k: int, weights: int) -> Any:
        """Seconds of a mixture of experts: linears (equation 2) of the experts that any token goes to, as many as when all are as likely.

        Args:
            tokens: of the pass.
            columns: elements a token that are read and written.
            num_experts: from which a token's are chosen.
            top_k: that it goes to.
            weights: elements of one expert's on this device.
        """
        needed = num_experts * (1 - (1 - top_k / num_experts) ** tokens)
        num_bytes = self.element_bytes * weights * needed + self.activation_bytes * tokens * columns
        return self.seconds("linear", tokens * top_k / needed, 2.0 * tokens * top_k * weights, num_bytes)

    def attention(self, requests: Any, tokens: Any, context: int, heads: int, kv_heads: int, head_dim: int) -> Any:
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
        cache = 2.0 * requests * kv_heads * head_dim * context * self.cache_bytes
        rows = 2.0 * requests * tokens * heads * head_dim * self.activation_bytes
        return self.seconds("attention", tokens * heads // kv_heads, flops, cache + rows)

    def rows(self, kind: OperatorKind, tokens: Any, in_columns: int, out_columns: int) -> Any:
        """Seconds of what only reads and writes activations: norms, sums, gates."""
        return self.seconds(kind, tokens, 0.0, self.activation_bytes * tokens * (in_columns + out_columns))

    def embedding(self, tokens: Any, columns: int) -> Any:
        """Seconds of looking tokens up."""
        return self.seconds("embedding", tokens, 0.0, tokens * columns * (self.element_bytes + self.activation_bytes))


def _cache_bytes(hardware: Hardware, element_bytes: int, kv_cache_dtype: str) -> int:
    refused = f"kv_cache_dtype={kv_cache_dtype!r} is not allowed"
    if not all(kv_cache_dtype in device.kv_cache_dtypes for device in hardware.devices):
        raise UsageError(f"{refused} on hardware {hardware.name}: not all of its devices list it in kv_cache_dtypes; give {AUTO!r}")
    if element_bytes != _HALF_BYTES:
        raise UsageError(f"{refused} for a model in float32: give {AUTO!r}, or dtype='bfloat16' or 'float16'")
    return 1


def _table(hardware: Hardware, kind: OperatorKind, dtype: str, busy: int) -> OperatorTable:
    """The one that was measured with so many busy devices, or with the next larger number of them."""
    tables = [table for table in hardware.operators if table.kind == kind and table.dtype == dtype]
    assert tables, (hardware.name, kind, dtype)
    return min(tables, key=lambda table: (0 < table.busy < busy, abs(table.busy - busy)))


def interpolated(tokens: Sequence[int], values: Sequence[float], wanted: Any) -> Any:
    """The value at a number of tokens, between two of the table's in proportion to logarithms; constant beyond its ends.

    Args:
        tokens: ascending places of a table.
        values: there.
        wanted: a number of tokens, or an array of them.
    """
    places, table = np.log(np.array(tokens, dtype=float)), np.array(values, dtype=float)
    if len(table) == 1:
        return table[0] + np.zeros(np.shape(wanted))
    at = np.clip(np.log(wanted), places[0], places[-1])
    high = np.clip(np.searchsorted(places, at), 1, len(places) - 1)
    below, above = table[high - 1], table[high]
    share = (at - places[high - 1]) / (places[high] - places[high - 1])
    is_positive = (below > 0) & (above > 0)
    ratio = np.where(is_positive, above, 1.0) / np.where(is_positive, below, 1.0)
    return np.where(is_positive, below * ratio**share, below + share * (above - below))[()]
