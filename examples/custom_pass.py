"""A pass of one's own: the weight of an RMSNorm is multiplied into the linears that read the norm.

A pass is a function that rewrites the graph and returns its matches. The graph can be run at any time, which is how this one is
checked: logits before and after must agree.
"""

import torch

from flexspec.ir.capture import capture
from flexspec.ir.graph import ModelGraph
from flexspec.ir.ops import RMS_NORM
from flexspec.models.load import load_model
from flexspec.passes.manager import run_passes
from flexspec.passes.match import is_parameter
from flexspec.passes.pipeline import RECOGNITION

LINEAR = torch.ops.aten.linear.default


def fold_norm_weights(model: ModelGraph) -> int:
    """linear(rms_norm(x, w), W) → linear(rms_norm(x, 1), W * w), where nothing but linears reads the norm."""
    matches = 0
    for norm in model.nodes(RMS_NORM):
        readers = list(norm.users)
        if not is_parameter(norm.args[1]) or any(user.target != LINEAR or not is_parameter(user.args[1]) for user in readers):
            continue
        weight = model.parameter(norm.args[1])  # [in_features]
        for linear in readers:
            matrix = linear.args[1]
            folded = model.parameter(matrix) * weight  # [out_features, in_features]
            origin = ("folded", model.origin(norm.args[1]), model.origin(matrix))
            linear.update_arg(1, model.add_parameter(f"{matrix.target}_folded", folded, before=linear, origin=origin))
        ones = model.add_parameter(f"{norm.args[1].target}_ones", torch.ones_like(weight), before=norm, origin=("ones", *weight.shape))
        norm.update_arg(1, ones)
        matches += 1
    model.finish()
    return matches


def main(model: str = "smollm2-135m") -> tuple[int, float]:
    graph = capture(load_model(model).module, name=model)
    run_passes(graph, RECOGNITION)
    token_ids, position_ids = torch.arange(3, 19), torch.arange(16)
    before = graph.module(token_ids, position_ids)  # [tokens, vocab]
    run_passes(graph, [fold_norm_weights])
    after = graph.module(token_ids, position_ids)
    matches, difference = graph.notes[-1].matches, (after - before).abs().max().item()
    print(f"{matches} norms folded; the logits differ by at most {difference:.1e}")
    return matches, difference


if __name__ == "__main__":
    main()
