"""Where a strategy's time and memory go."""

from flexspec.passes.search.case import Solved
from flexspec.passes.search.cost import CostModel
from flexspec.passes.search.pass_costs import COLLECTIVES
from flexspec.passes.search.stages import Floats

_ROUNDING = 1e-9


def time_parts(costs: CostModel, solved: Solved) -> dict[str, float]:
    """Seconds of a step by what takes them: kinds of the layers' operators, and the rest; they add up to it."""
    case, size, drafting = solved.case, solved.grown.size, solved.case.drafting
    shape, way = case.shape, case.division
    passes, request = costs.passes(costs.busy(shape)), costs.requests.index(shape.requests)
    groups = costs.links(shape.dp, shape.pp, shape.tp, len(case.option.own_devices)).groups
    found: dict[str, float] = {}

    def add(parts: dict[str, Floats], number: int = 1, name: str | None = None) -> None:
        for kind, values in parts.items():
            part = kind if name is None or kind == COLLECTIVES else name
            found[part] = found.get(part, 0.0) + number * float(values[request, size])

    add(passes.parts(way.embedding, groups[0]))
    layer = 0
    for count, group in zip(solved.split.layers, groups, strict=True):
        for place, kind in enumerate(costs.kinds):
            add(passes.parts(way.blocks[kind], group), int((costs.layers[layer : layer + count] == place).sum()))
        layer += count
    add(passes.parts(way.head, groups[-1]), name="head")
    found.pop("view", None)
    found["messages"] = float(case.stages.between[size])
    found["drafting"] = max(float(drafting.beside[solved.tree]), float(drafting.apart[solved.tree]))
    found["host"] = float(drafting.host[solved.tree])
    waiting = solved.cycle - sum(found.values())
    found["waiting"] = waiting if waiting > _ROUNDING * solved.cycle else 0.0
    return found


def memory_parts(costs: CostModel, solved: Solved) -> dict[str, float]:
    """Bytes of the fullest device by what they are for; what is left free is not counted."""
    case, size = solved.case, solved.grown.size
    shape, way = case.shape, case.division
    others, request = costs.ends((way,), min(shape.pp, 2)), costs.requests.index(shape.requests)
    kv, weights = costs.kv_bytes(way.kv_heads)[size] * shape.requests * shape.micro_batches, costs.layer_weights((way,))
    devices: list[dict[str, float]] = []
    layer = 0
    for stage, count in enumerate(solved.split.layers):
        is_first, is_last = stage == 0, stage == shape.pp - 1
        ends = is_first * others.embedding[request, size] + is_last * others.head[request, size]
        devices.append(
            {
                "weights": float(weights[costs.layers[layer : layer + count]].sum() + ends),
                "KV cache": float(count * kv),
                "activations": float(others.activations[request, size] + is_last * others.logits[request, size]),
                "communication buffers": float(others.buffers[request, size]),
                "drafters": case.drafting.beside_bytes if is_last else 0.0,
            }
        )
        layer += count
    if case.drafting.apart_bytes:
        devices.append({"drafters": case.drafting.apart_bytes})
    return max(devices, key=lambda parts: sum(parts.values()))
