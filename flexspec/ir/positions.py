"""The part of a graph that depends on positions alone."""

from torch import fx, nn

from flexspec.ir.graph import ModelGraph, depends_on


def position_values(model: ModelGraph) -> tuple[list[fx.Node], list[fx.Node]]:
    """Values computed from positions and constants alone, such as rotary tables and learned position embeddings.

    Returns:
        Their nodes in graph order, and those of them that the rest of the graph reads.
    """
    positions = model.placeholder("position_ids")
    batch = [node for node in model.graph.find_nodes(op="placeholder") if node is not positions]
    others = depends_on(model.graph, batch)
    from_positions = [node for node in model.graph.nodes if node not in others and node.op in ("call_function", "get_attr")]
    computed = [node for node in from_positions if node.op == "call_function"]
    frontier = [node for node in computed if any(user in others or user.op == "output" for user in node.users)]
    return computed, frontier


def position_graph(model: ModelGraph) -> tuple[fx.GraphModule, list[fx.Node]]:
    """A graph `position_ids [N] -> tuple of the values the rest reads`, and the nodes of those values."""
    computed, frontier = position_values(model)
    graph = fx.Graph()
    values = {model.placeholder("position_ids"): graph.placeholder("position_ids")}
    for node in computed:
        for arg in node.all_input_nodes:
            if arg not in values:
                values[arg] = graph.node_copy(arg)
        values[node] = graph.node_copy(node, lambda old: values[old])
    graph.output(tuple(values[node] for node in frontier))
    # The constants are copied: the module that was given may be trained on or changed.
    constants = nn.Module()
    for arg, node in values.items():
        if node.op == "get_attr":
            constants.register_buffer(str(node.target), model.parameter(arg).detach().clone())
    return fx.GraphModule(constants, graph), frontier
