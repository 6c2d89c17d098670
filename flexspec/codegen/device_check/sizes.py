"""How much is checked and measured: in earnest on a GPU, or as little as proves the program itself on a CPU."""

from dataclasses import dataclass

from flexspec.codegen.cuda.report.roofline import LAYER_7B, LayerShape


@dataclass(frozen=True, kw_only=True)
class LlamaSize:
    """Sizes of a LLaMA-shaped model.

    Attributes:
        name: in tables.
        hidden: size of the residual stream.
        intermediate: size of the gated MLP.
        layers: how many.
        heads: query heads.
        kv_heads: heads of keys and values.
        vocab: tokens.
        is_tied: whether the LM head is the embedding.
    """

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    is_tied: bool

    @property
    def embedding_parameters(self) -> int:
        """Of the embedding alone."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All of them, shared ones once."""
        kv_dim = self.hidden // self.heads * self.kv_heads
        layer = 2 * self.hidden * (self.hidden + kv_dim) + 3 * self.hidden * self.intermediate + 2 * self.hidden
        return self.layers * layer + self.hidden + self.embedding_parameters * (1 if self.is_tied else 2)

    @property
    def read_parameters(self) -> int:
        """Those that every pass reads: of an embedding that is not the LM head it reads a few rows."""
        return self.parameters - (0 if self.is_tied else self.embedding_parameters)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What is run.

    Attributes:
        contexts: committed slots of the requests that kernels' numbers are checked with.
        vocab: of the kernels that choose tokens.
        layer: that attention is timed for.
        layer_contexts: committed slots, where attention is timed.
        layer_trees: tree nodes, where attention is timed.
        models: random models, the smallest first: that one serves requests too.
        pass_contexts: committed slots, where passes are timed.
        pass_trees: tree nodes, where passes are timed.
        batches: requests at once, where whole engines are timed.
        prompt_tokens: of each of these requests.
        new_tokens: of each of these requests.
        repeats: of what is timed; the median counts.
        calls: of an operator in a row, to see what a call costs.
    """

    contexts: tuple[int, ...]
    vocab: int
    layer: LayerShape
    layer_contexts: tuple[int, ...]
    layer_trees: tuple[int, ...]
    models: tuple[LlamaSize, ...]
    pass_contexts: tuple[int, ...]
    pass_trees: tuple[int, ...]
    batches: tuple[int, ...]
    prompt_tokens: int
    new_tokens: int
    repeats: int
    calls: int


_LLAMA_1B = LlamaSize(name="1B", hidden=2048, intermediate=8192, layers=16, heads=32, kv_heads=8, vocab=128_256, is_tied=True)
_LLAMA_8B = LlamaSize(name="8B", hidden=4096, intermediate=14_336, layers=32, heads=32, kv_heads=8, vocab=128_256, is_tied=False)

FULL = Sizes(
    contexts=(0, 37, 700),
    vocab=32_000,
    layer=LAYER_7B,
    layer_contexts=(1024, 4096, 16_384),
    layer_trees=(1, 16, 64),
    models=(_LLAMA_1B, _LLAMA_8B),
    pass_contexts=(512, 4096),
    pass_trees=(1, 2, 4, 8, 16, 32, 64, 128),
    batches=(1, 8),
    prompt_tokens=128,
    new_tokens=128,
    repeats=20,
    calls=200,
)

_LLAMA_TINY = LlamaSize(name="tiny", hidden=32, intermediate=48, layers=2, heads=2, kv_heads=1, vocab=64, is_tied=True)

DRY = Sizes(
    contexts=(0, 5),
    vocab=200,
    layer=LayerShape(heads=4, kv_heads=2, head_dim=16, layers=1, vocab=64),
    layer_contexts=(24,),
    layer_trees=(1, 5),
    models=(_LLAMA_TINY,),
    pass_contexts=(8,),
    pass_trees=(1, 4),
    batches=(1, 2),
    prompt_tokens=4,
    new_tokens=8,
    repeats=1,
    calls=2,
)
