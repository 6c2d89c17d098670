"""What a module's own structure says its graph must hold: the count that passes check their matches against."""

from collections.abc import Mapping

from torch import nn


def expected_patterns(module: nn.Module) -> Mapping[str, int]:
    """Patterns by name, found through the names of classes and submodules that Hugging Face's decoders share.

    Returns:
        `rms_norm`, `gated_mlp`, and `shared_linears` (linears that read one value: Q+K+V, gate+up); 0 where names tell nothing.
    """
    children = [{name for name, _ in one.named_children()} for one in module.modules()]
    gated = sum(names >= {"gate_proj", "up_proj"} for names in children)
    attentions = sum(names >= {"q_proj", "k_proj", "v_proj"} for names in children)
    norms = sum("RMSNorm" in type(one).__name__ for one in module.modules())
    return {"rms_norm": norms, "gated_mlp": gated, "shared_linears": attentions + gated}
