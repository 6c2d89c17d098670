"""What the host does in a step besides running passes, measured on an engine whose model is next to nothing, and drafts for itself."""

from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from transformers import LlamaConfig, LlamaForCausalLM

from flexspec.api.lower import lower
from flexspec.codegen.batch import chain_batch
from flexspec.codegen.compiled_model import LoweredModel
from flexspec.codegen.kv_storage import KVStorage
from flexspec.codegen.weight_store import WeightStore
from flexspec.config import SamplingParams
from flexspec.models.load import load_model
from flexspec.runtime.drafters.ssm import SsmDrafter
from flexspec.runtime.engine import Engine
from flexspec.tree_shape import TreeSpec

_PROMPT = [1, 2, 3]
_BUCKETS = (1, 64)
_MAX_LEN = 192
_BARE_VOCAB = 64
_REPEATS = 100
_HEAD_SCALE = 25.0
"""Makes logits about as unlike each other as a trained model's: among equal ones the largest are hard to find."""


@dataclass(frozen=True, kw_only=True)
class HostSizes:
    """What is measured.

    Attributes:
        vocab: columns of the logits, as many as a usual model has: choosing from them is the host's work.
        trees: widths of token trees.
        requests: of a step.
        new_tokens: of a request.
    """

    vocab: int = 49152
    trees: tuple[tuple[int, ...], ...] = ((), (1, 1, 1), (2, 2, 1), (4, 1, 1, 1), (4, 2, 2))
    requests: tuple[int, ...] = (1, 4)
    new_tokens: int = 80


def measure_host(sizes: HostSizes) -> dict[str, float]:
    """The fields of `HostTimes`, by least squares over steps of all those kinds."""
    model = _ClockedModel(_tiny(sizes.vocab))
    rows: list[list[float]] = []
    seconds: list[float] = []
    for widths in sizes.trees:
        spec = TreeSpec(widths=widths)
        for requests in sizes.requests:
            rows.append([1.0, requests, requests * spec.num_nodes, spec.depth])
            seconds.append(_host_seconds(model, spec, requests, sizes))
    scale = np.array(seconds)  # errors count in proportion
    found, _ = nnls(np.array(rows) / scale[:, None], np.ones(len(rows)))
    bare = _bare_pass_seconds(_tiny(_BARE_VOCAB))
    step, request, node, level = (1e6 * float(one) for one in found)
    return {
        "step_us": round(step + 1e6 * bare, 2),
        "request_us": round(request, 2),
        "node_us": round(node, 2),
        "level_us": round(level + 1e6 * bare, 2),
    }


class _ClockedModel:
    """A compiled model that adds up the time of its passes."""

    def __init__(self, model: LoweredModel) -> None:
        self._model: Any = model
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, *arguments: Any) -> torch.Tensor:
        """As the model's."""
        began = perf_counter()
        logits: torch.Tensor = self._model.forward(*arguments)
        self.seconds += perf_counter() - began
        return logits


def _host_seconds(model: _ClockedModel, spec: TreeSpec, requests: int, sizes: HostSizes) -> float:
    """Seconds of a step, without those of passes."""
    drafters = [SsmDrafter("ssm", model, max_requests=requests, block_size=_MAX_LEN + spec.num_nodes)] if spec.depth else []
    engine = Engine(model, drafters=drafters, tree=spec, max_batch=requests, max_len=_MAX_LEN, log_every_s=None)
    for _ in range(requests):
        engine.add(_PROMPT, SamplingParams(max_tokens=sizes.new_tokens, ignore_eos=True))
    engine.step()
    seconds = []
    while engine.has_work:
        passes = model.seconds
        began = perf_counter()
        chunks = engine.step()
        elapsed = perf_counter() - began
        if all(chunk.output is None for chunk in chunks):
            seconds.append(elapsed - (model.seconds - passes))
    return median(seconds)


def _tiny(vocab: int) -> LoweredModel:
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2 * _MAX_LEN,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = LlamaForCausalLM(config).eval()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            module.lm_head.weight.mul_(_HEAD_SCALE)
    return lower(load_model(module), dtype=torch.float32, buckets=_BUCKETS, store=WeightStore()).model


def _bare_pass_seconds(model: LoweredModel) -> float:
    """Seconds of a pass in which next to nothing is computed: what the host does for every pass."""
    kv = KVStorage.of_requests(model.kv_shape, 1)
    batch = chain_batch(np.zeros(1, dtype=np.int64), block_table=kv.block_table)
    seconds = []
    for _ in range(_REPEATS):
        began = perf_counter()
        model.forward(batch, kv)
        seconds.append(perf_counter() - began)
    return median(seconds)
