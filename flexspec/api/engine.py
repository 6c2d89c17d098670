"""An engine for a compiled model under a strategy."""

from collections.abc import Sequence

from flexspec.acceptance import AcceptanceTable
from flexspec.api.devices import affordable_slots
from flexspec.codegen.compiled_model import CompiledModel
from flexspec.models.loaded_model import LoadedModel
from flexspec.runtime.drafters.base import Drafter
from flexspec.runtime.engine import Engine
from flexspec.strategy import Strategy
from flexspec.tree_shape import PLAIN


def make_engine(
    model: CompiledModel,
    loaded: LoadedModel,
    strategy: Strategy,
    *,
    drafters: Sequence[Drafter],
    verifier: str | None = None,
    acceptance: AcceptanceTable | None = None,
    log_every_s: float | None = None,
) -> Engine:
    """An engine with a KV cache of its own; several may share one compiled model, as long as they take turns.

    Args:
        model: the compiled LLM.
        loaded: the same model, for its tokenizer and special tokens.
        strategy: with `max_len` filled in.
        drafters: fill the strategy's tree; none decodes plainly.
        verifier: None for the strategy's.
        acceptance: what is known of the drafters, and goes on learning; None for nothing.
        log_every_s: as `Engine` takes it; None for no lines in the log.
    """
    assert strategy.max_len is not None
    page_size, num_blocks = model.kv_shape.page_size, None
    if page_size is not None:
        wanted = strategy.max_batch * (strategy.max_len + strategy.buckets[-1] + page_size)
        num_blocks = affordable_slots(model.kv_shape, wanted=wanted) // page_size
    return Engine(
        model,
        drafters=drafters,
        verifier_name=verifier or strategy.verifier,
        tree=strategy.tree if drafters else PLAIN,
        acceptance=acceptance,
        max_batch=strategy.max_batch,
        max_len=strategy.max_len,
        pass_tokens=strategy.buckets[-1],
        block_size=page_size,
        num_blocks=num_blocks,
        micro_batches=strategy.parallel.micro_batches,
        eos_token_ids=loaded.eos_token_ids,
        vocab_limit=loaded.token_id_limit,
        tokenizer=loaded.tokenizer,
        log_every_s=log_every_s,
    )
