"""An engine for a compiled model under a strategy."""

from flexspec.codegen.compiled_model import CompiledModel
from flexspec.models.loaded_model import LoadedModel
from flexspec.runtime.drafters.base import Drafter
from flexspec.runtime.engine import Engine
from flexspec.strategy import Strategy
from flexspec.tree_shape import TreeSpec


def make_engine(
    model: CompiledModel, loaded: LoadedModel, strategy: Strategy, *, drafter: Drafter | None, verifier: str | None = None
) -> Engine:
    """An engine with a KV cache of its own; several may share one compiled model, as long as they take turns.

    Args:
        model: the compiled LLM.
        loaded: the same model, for its tokenizer and special tokens.
        strategy: with `max_len` filled in.
        drafter: fills the strategy's tree; None decodes plainly.
        verifier: None for the strategy's.
    """
    assert strategy.max_len is not None
    return Engine(
        model,
        drafter=drafter,
        verifier_name=verifier or strategy.verifier,
        tree=TreeSpec(widths=strategy.tree if drafter is not None else ()),
        max_batch=strategy.max_batch,
        max_len=strategy.max_len,
        pass_tokens=strategy.buckets[-1],
        eos_token_ids=loaded.eos_token_ids,
        vocab_limit=loaded.token_id_limit,
        tokenizer=loaded.tokenizer,
    )
