"""The section of docs/kernels.md on how long each kernel must take."""

from collections.abc import Callable

from flexspec.codegen.cuda.kernels.combine_splits import MOST_SPLITS
from flexspec.codegen.cuda.pass_shape import LEAST_KEYS_A_SPLIT, PassSizes
from flexspec.codegen.cuda.report.markdown import table
from flexspec.codegen.cuda.report.roofline import (
    H200,
    LAUNCH_S,
    LAYER_7B,
    NOISE_INSTRUCTIONS,
    Work,
    attention_work,
    bound,
    combine_work,
    commit_work,
    draft_top_work,
    free_tokens,
    probabilities_work,
    residual_work,
    rope_write_work,
    split_seconds,
    truncate_work,
    verify_work,
)
from flexspec.codegen.cuda.tiles import block_tokens

CONTEXTS = (1024, 4096, 8192, 16384, 32768)
TREES = (1, 8, 16, 32, 64)
_BFLOAT16 = 2
_FLOAT8 = 1

_TEXT = """\
## What a layer must take

The least that each kernel must move and compute, of one request and one layer of a 7B-class model ({heads} query heads, {kv_heads} KV
heads, {head_dim} dims, {layers} layers, {vocab:,} tokens, bfloat16), and how long the busiest resource of an {chip} takes for it:
{bandwidth} TB/s of memory, {flops:.0f} bfloat16 TFLOP/s (measured), {exponentials:.1f} · 10¹² exponentials/s and
{instructions:.0f} · 10¹² instructions/s of threads (computed). Nothing here was measured with these kernels: it is what
measurements are compared with, and a launch takes some microseconds however little it does. With n tree nodes, context C, H query
heads, K KV heads, D dims, b bytes of a cached number, S splits, L layers and V tokens:

| kernel | bytes | operations |
| --- | --- | --- |
| tree_attention | 2·(C+n)·K·D·b + 2·n·H·D·2 + 4·n·⌈n/32⌉ | 4·n·H·D·(C+n), n·H·(C+n) exponentials |
| tree_attention, split | its output is S·n·H·(D+1)·4 instead of n·H·D·2 | the same |
| combine_splits | S·n·H·(D+1)·4 + n·H·D·2 | S·n·H exponentials |
| rope_write | n·((2·H·D + 2·K·D)·2 + 2·K·D·b + 2·D·4 + 8) | |
| kv_commit | 4·L·K·D·b + 8 for each slot moved, in all layers | |
| tree_verify, draft_top | n·V·4 | with noise, {noise} instructions for each of n·V tokens (counted in the code for sm_90) |
| truncate | n·V·4 | |
| probabilities | n·V·(4 + 8) | |
| residual | 2·n·V·8, n nodes with one trial | |

While memory bounds attention, further nodes cost nothing: up to {free_bf16:.0f} over a long context in bfloat16 and {free_fp8:.0f} over a
cache in 8 bits, since a slot takes 2·K·D·b bytes and 4·n·H·D operations.
"""


def roofline_section() -> str:
    """The section, in Markdown."""
    text = _TEXT.format(
        heads=LAYER_7B.heads,
        kv_heads=LAYER_7B.kv_heads,
        head_dim=LAYER_7B.head_dim,
        layers=LAYER_7B.layers,
        vocab=LAYER_7B.vocab,
        chip=H200.name,
        bandwidth=H200.bytes_per_s / 1e12,
        flops=H200.matrix_flops_per_s / 1e12,
        exponentials=H200.exponentials_per_s / 1e12,
        instructions=H200.instructions_per_s / 1e12,
        noise=NOISE_INSTRUCTIONS,
        free_bf16=free_tokens(LAYER_7B, H200, cache_bytes=_BFLOAT16),
        free_fp8=free_tokens(LAYER_7B, H200, cache_bytes=_FLOAT8),
    )
    splits = (
        f"The last column is what it takes in the parts that the runtime makes of the keys, on {H200.multiprocessors} multiprocessors of "
        f"which each has its share of everything and works on whole programs (a tile, a KV head, a part), with {LAUNCH_S * 1e6:.0f} µs for "
        f"the launch of the reduction (assumed) and the reduction; in brackets, how many parts: at most {MOST_SPLITS}, of at least "
        f"{LEAST_KEYS_A_SPLIT} keys. In one part, one request keeps {LAYER_7B.kv_heads} multiprocessors busy for each of its tiles.\n"
    )
    return "\n".join([text, "### Attention\n", splits, _attention_table(), "### The others\n", _others_table()])


def _attention_table() -> str:
    rows = []
    for context in CONTEXTS:
        for tokens in TREES:
            works = [attention_work(LAYER_7B, tokens=tokens, context=context, cache_bytes=size) for size in (_BFLOAT16, _FLOAT8)]
            megabytes = [f"{work.moved_bytes / 1e6:.2f}" for work in works]
            flops = f"{works[0].matrix_flops / 1e9:.2f}"
            rows.append([f"{context:,}", str(tokens), *megabytes, flops, *map(_time, works), _split_time(context, tokens)])
    return table(["context", "nodes", "MB, bf16", "MB, fp8 cache", "GFLOP", "bf16", "fp8 cache", "bf16, in parts"], rows)


def _split_time(context: int, tokens: int) -> str:
    sizes = PassSizes(tokens=(tokens,), heads=LAYER_7B.heads, kv_heads=LAYER_7B.kv_heads, multiprocessors=H200.multiprocessors)
    num_tiles = -(-tokens // block_tokens(LAYER_7B.heads, LAYER_7B.kv_heads, tokens))
    splits = sizes.splits(num_tiles, tokens, context + tokens)
    seconds = split_seconds(LAYER_7B, H200, tokens=tokens, context=context, cache_bytes=_BFLOAT16, num_splits=splits)
    return f"{seconds * 1e6:.2f} µs ({splits})"


def _others_table() -> str:
    kernels: dict[str, Callable[[int], Work]] = {
        "rope_write": lambda n: rope_write_work(LAYER_7B, tokens=n, cache_bytes=_BFLOAT16),
        f"combine_splits, {MOST_SPLITS} splits": lambda n: combine_work(LAYER_7B, tokens=n, num_splits=MOST_SPLITS),
        "kv_commit, all nodes in all layers": lambda n: commit_work(LAYER_7B, moved=n, cache_bytes=_BFLOAT16),
        "tree_verify, greedy": lambda n: verify_work(LAYER_7B, nodes=n, with_noise=False),
        "tree_verify, noise": lambda n: verify_work(LAYER_7B, nodes=n, with_noise=True),
        "truncate": lambda n: truncate_work(LAYER_7B, nodes=n),
        "probabilities": lambda n: probabilities_work(LAYER_7B, nodes=n),
        "residual": lambda n: residual_work(LAYER_7B, nodes=n),
        "draft_top, no noise": lambda n: draft_top_work(LAYER_7B, nodes=n, with_noise=False),
        "draft_top, noise": lambda n: draft_top_work(LAYER_7B, nodes=n, with_noise=True),
    }
    rows = [[name, *(_time(work(tokens)) for tokens in TREES)] for name, work in kernels.items()]
    return table(["kernel", *(f"{tokens} nodes" if tokens > 1 else "1 node" for tokens in TREES)], rows)


def _time(work: Work) -> str:
    limit = bound(work, H200)
    return f"{limit.seconds * 1e6:.2f} µs ({limit.resource})"
