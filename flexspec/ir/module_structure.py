"""What a module's own structure says its graph must hold: the count that passes check their matches against."""

from collections.abc import Iterable, Mapping

from torch import Tensor, nn


def expected_patterns(module: nn.Module, used: Iterable[Tensor]) -> Mapping[str, int]:
    """Patterns by name, found through the names of classes and submodules that Hugging Face's decoders share.

    Args:
        module: what was captured.
        used: the parameters that its graph reads; a part of the module that has others alone is not in the graph.

    Returns:
        `rms_norm`, `gated_mlp`, and `shared_linears` (linears that read one value with others: Q, K and V, gate and up); 0 where
        names tell nothing.
    """
    memory = {parameter.data_ptr() for parameter in used}
    parts = [one for one in module.modules() if _is_read(one, memory)]
    children = [{name for name, _ in one.named_children()} for one in parts]
    gated = sum(names >= {"gate_proj", "up_proj"} for names in children)
    attentions = sum(names >= {"q_proj", "k_proj", "v_proj"} for names in children)
    norms = sum("RMSNorm" in type(one).__name__ and any(True for _ in one.parameters()) for one in parts)
    return {"rms_norm": norms, "gated_mlp": gated, "shared_linears": 3 * attentions + 2 * gated}


def _is_read(part: nn.Module, memory: set[int]) -> bool:
    own = {parameter.data_ptr() for parameter in part.parameters()}
    return not own or not own.isdisjoint(memory)
