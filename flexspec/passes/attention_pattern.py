"""Attention as a model writes it out → `flexspec::attention`: `scaled_dot_product_attention`, or matmul, softmax, matmul.

The products of queries and keys, the softmax and the products with values are found in the graph; what happens between the products
and the softmax, and how queries, keys and values came to where they are, is found out by running it (see `mask_meaning`, `heads`).
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from flexspec.errors import UsageError
from flexspec.ir.evaluate import Evaluation, depends_on_content
from flexspec.ir.graph import ModelGraph, fake
from flexspec.ir.ops import ATTENTION
from flexspec.passes.attention_masks import UNBOUNDED, AttentionSite, Masks
from flexspec.passes.heads import is_move, numbered, replace_result, scaled_before_moves, sources, with_heads
from flexspec.passes.mask_meaning import NotUnderstood
from flexspec.passes.repeated_heads import without_repeats

_aten = torch.ops.aten
_SDPA = _aten.scaled_dot_product_attention.default
_SOFTMAX = (_aten.softmax.int, _aten._softmax.default, _aten._safe_softmax.default)
_PRODUCTS = (_aten.matmul.default, _aten.bmm.default)
_UNCHANGED = {_aten.dropout.default, _aten.to.dtype, _aten._to_copy.default, _aten.to.dtype_layout, _aten.type_as.default}
_broadcast_shapes: Callable[..., torch.Size] = torch.broadcast_shapes  # untyped in PyTorch


def recognise_attention(model: ModelGraph) -> tuple[int, int]:
    """Rewrite all attentions of a captured graph.

    Returns:
        Matches, and how many softmaxes over the text there were.

    Raises:
        UsageError: naming an attention that is not understood, and what its mask looked like.
    """
    for node in model.nodes(_aten.baddbmm.default):
        _split_baddbmm(model, node)
    content = depends_on_content(model, model.token_inputs)
    masks = Masks(model)
    found = [node for node in model.nodes(_SDPA, *_SOFTMAX) if node in content and _is_over_text(model, node)]
    for node in found:
        try:
            site = _sdpa(node) if node.target == _SDPA else _decomposed(model, node, content)
            if any(read in content for read in site.reads):
                raise NotUnderstood("its mask depends on what the tokens are")
            _rewrite(model, site, masks)
        except NotUnderstood as error:
            raise UsageError(
                f"model {model.facts.name}: attention {node.name} is not supported: {error}; what is supported is causal attention, with a "
                "sliding window, ALiBi or a soft cap or without, over the whole text"
            ) from error
    if found:
        if masks.limit < UNBOUNDED:
            limits = [limit for limit in (model.facts.max_positions, masks.limit) if limit is not None]
            model.facts = replace(model.facts, max_positions=min(limits))
        model.finish()
    return len(found), len(found)


def _is_over_text(model: ModelGraph, node: fx.Node) -> bool:
    if node.target == _SDPA:
        return True
    dim = node.args[1]
    assert isinstance(dim, int)
    size, length = fake(node).shape[dim], fake(model.placeholder("token_ids")).shape[1]
    return isinstance(size, torch.SymInt) and bool(size.node.expr == length.node.expr)


def _split_baddbmm(model: ModelGraph, node: fx.Node) -> None:
    """baddbmm(a, b, c) → a * beta + bmm(b, c) * alpha."""
    bias, first, second = node.args
    product = model.emit(_aten.bmm.default, (first, second), before=node)
    scaled = model.emit(_aten.mul.Tensor, (product, node.kwargs.get("alpha", 1)), before=node)
    weighted = model.emit(_aten.mul.Tensor, (bias, node.kwargs.get("beta", 1)), before=node)
    node.replace_all_uses_with(model.emit(_aten.add.Tensor, (weighted, scaled), before=node))
    model.graph.erase_node(node)


def _sdpa(node: fx.Node) -> AttentionSite:
    names = [argument.name for argument in _SDPA._schema.arguments]
    given: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    q, k, v, mask = given["query"], given["key"], given["value"], given.get("attn_mask")
    if given.get("dropout_p", 0.0):
        raise NotUnderstood("it has dropout")
    head_dim = fake(q).shape[-1]
    scale = given.get("scale")
    scale = float(head_dim) ** -0.5 if scale is None else float(scale)

    def scores(evaluation: Evaluation, products: Tensor) -> Tensor:
        result = products * scale
        if given.get("is_causal"):
            future = torch.ones(products.shape[-2:], dtype=torch.bool).triu(1)
            result = result.masked_fill(future, -torch.inf)
        if mask is None:
            return result
        seen = evaluation.value(mask)
        return result.masked_fill(~seen, -torch.inf) if seen.dtype == torch.bool else result + seen

    return AttentionSite(
        out=node,
        operands=(q, k, v),
        keys_transposed=False,
        scores=scores,
        reads=() if mask is None else (mask,),
        form=(node.target, bool(given.get("is_causal")), scale, mask),
        exact_scale=scale,
    )


def _decomposed(model: ModelGraph, softmax: fx.Node, content: set[fx.Node]) -> AttentionSite:
    if softmax.args[1] not in (-1, fake(softmax).dim() - 1):
        raise NotUnderstood("its softmax is not over the last dim")
    source = softmax.args[0]
    assert isinstance(source, fx.Node)
    path = _path_to_product(source, content)
    product, out = path[-1], _product_with_values(softmax)
    q, k = product.args
    v = out.args[1]
    assert isinstance(q, fx.Node) and isinstance(k, fx.Node) and isinstance(v, fx.Node)
    q, k = scaled_before_moves(model, q), scaled_before_moves(model, k)

    def scores(evaluation: Evaluation, products: Tensor) -> Tensor:
        value: Tensor = evaluation.value(source, {product: products.reshape(evaluation.shape(product))})
        return value.reshape(products.shape)

    inside = {node: place for place, node in enumerate(path)}
    reads = tuple(arg for node in path[:-1] for arg in node.all_input_nodes if arg not in inside)
    form = repr([(node.target, fx.node.map_arg((node.args, node.kwargs), lambda arg: inside.get(arg, arg))) for node in path[:-1]])
    return AttentionSite(out=out, operands=(q, k, v), keys_transposed=True, scores=scores, reads=reads, form=form)


def _path_to_product(node: fx.Node, content: set[fx.Node]) -> list[fx.Node]:
    """From what a softmax reads back to the products of queries and keys: the values that depend on the tokens."""
    path = [node]
    while path[-1].target not in _PRODUCTS:
        inputs = [arg for arg in path[-1].all_input_nodes if arg in content]
        if len(inputs) != 1:
            raise NotUnderstood(f"what its softmax reads is not computed from one product of queries and keys, see {path[-1].name}")
        path.append(inputs[0])
    return path


def _product_with_values(softmax: fx.Node) -> fx.Node:
    node = softmax
    while True:
        users = list(node.users)
        if len(users) == 1 and users[0].target in _PRODUCTS and users[0].args[0] is node:
            return users[0]
        if len(users) != 1 or not (users[0].target in _UNCHANGED or is_move(users[0])):
            raise NotUnderstood(f"its weights {node.name} are used for something else than a product with values")
        node = users[0]


def _rewrite(model: ModelGraph, site: AttentionSite, masks: Masks) -> None:
    evaluation = masks.at(2, 5)
    tops = [list(sources(node))[-1] for node in site.operands]
    raw = [evaluation.value(node, {top: numbered(evaluation, top)}) for node, top in zip(site.operands, tops, strict=True)]
    if site.keys_transposed:
        raw[1] = raw[1].transpose(-1, -2)
    if site.out.target == _SDPA:
        raw[1:] = [one.repeat_interleave(raw[0].shape[-3] // one.shape[-3], dim=-3) for one in raw[1:]]
    if len({one.dim() for one in raw}) > 1:  # heads are part of the batch in some
        raw = [one.reshape(evaluation.batch, -1, *one.shape[-2:]) for one in raw]
    try:
        lead = _broadcast_shapes(*(one.shape[:-2] for one in raw))
    except RuntimeError as error:
        raise NotUnderstood(f"its queries, keys and values are of shapes {[list(one.shape) for one in raw]}") from error
    moved = [
        one.expand(*lead, *one.shape[-2:]).reshape(evaluation.batch, -1, evaluation.length, one.shape[-1]).transpose(1, 2) for one in raw
    ]
    parts = [
        with_heads(model, evaluation, node, elements, top, site.out) for node, elements, top in zip(site.operands, moved, tops, strict=True)
    ]
    if parts[1] is not None and fake(tops[1]).dim() == 4:
        parts[1] = _once(model, evaluation, tops[1], parts[1], site.out)
    if any(part is None for part in parts):
        name = ("queries", "keys", "values")[parts.index(None)]
        raise NotUnderstood(f"its {name} are not laid out as heads of each token")
    q4, k4, v4 = parts
    heads, head_dim = (int(dim) for dim in fake(q4).shape[2:])
    kv_heads = {int(fake(one).shape[2]) for one in (k4, v4)}
    if len(kv_heads) != 1:
        raise NotUnderstood(f"it has {int(fake(k4).shape[2])} heads of keys and {int(fake(v4).shape[2])} of values")
    meaning = masks.meaning(site, heads)
    scale = site.exact_scale or _exact(meaning.scale, head_dim)
    slopes = None if meaning.slopes is None else masks.slopes(meaning.slopes)
    arguments = (q4, k4, v4, scale, meaning.window, meaning.softcap, None, slopes)
    attention = model.emit(ATTENTION, arguments, before=site.out)
    if not replace_result(model, evaluation, site.out, attention):
        raise NotUnderstood(f"its result {site.out.name} is used in another shape than heads of each token")


def _once(model: ModelGraph, evaluation: Evaluation, top: fx.Node, keys: fx.Node, before: fx.Node) -> fx.Node:
    """Keys with each KV head once, where a model repeats them before it turns them; `keys` themselves otherwise."""

    def reduced(leaf: fx.Node) -> fx.Node | None:
        begin = list(sources(leaf))[-1]
        moved = evaluation.value(leaf, {begin: numbered(evaluation, begin)}).transpose(1, 2)
        return with_heads(model, evaluation, leaf, moved, begin, before)

    if list(fake(top).shape[1:2]) != list(fake(keys).shape[2:3]):
        return keys
    turned = without_repeats(model, evaluation, top, reduced, before)
    return keys if turned is None else model.emit(_aten.transpose.int, (turned, 1, 2), before=before)


def _exact(scale: float, head_dim: int) -> float:
    """A scale that float32 arithmetic gave, as it was meant."""
    usual = head_dim**-0.5
    return usual if math.isclose(scale, usual, rel_tol=1e-6) else scale
