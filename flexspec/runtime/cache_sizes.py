"""How large an engine's KV cache is, and the trees that it has room for."""

from dataclasses import dataclass

from flexspec.codegen.kv_storage import KVShape, KVStorage
from flexspec.errors import UsageError
from flexspec.runtime.kv_cache import KVCache
from flexspec.tree_shape import Tree, TreeLimits

# Several drafters, each filling the spec, propose one merged tree: the tail has room for this many of them.
_MERGED_TREES = 4


@dataclass(frozen=True, kw_only=True)
class CacheSizes:
    """What a cache is made of.

    Attributes:
        tree_nodes: drafted nodes of a full tree of one drafter.
        max_nodes: most drafted nodes of a request's tree.
        block_size: slots of a block.
        blocks_per_request: most blocks of a request: of the longest one with the largest tree.
        num_blocks: blocks of all requests.
    """

    tree_nodes: int
    max_nodes: int
    block_size: int
    blocks_per_request: int
    num_blocks: int

    @classmethod
    def of(
        cls, tree: Tree, *, max_batch: int, max_len: int, pass_tokens: int, block_size: int | None = None, num_blocks: int | None = None
    ) -> "CacheSizes":
        """The sizes for an engine.

        Args:
            tree: as `Engine` takes it.
            max_batch: most requests that run at once.
            max_len: most tokens of a request.
            pass_tokens: most tokens of a pass.
            block_size: slots of a block; None for blocks that each hold a whole request.
            num_blocks: None for as many as `max_batch` of the longest requests take.

        Raises:
            UsageError: if the blocks do not hold the longest request with a full tree, which must always be able to run alone.
        """
        for name, value in (("block_size", block_size), ("num_blocks", num_blocks)):
            if value is not None and value < 1:
                raise UsageError(f"{name}={value} is not allowed: give 1 or more, or None for the default")
        tree_nodes = min(tree.num_nodes, pass_tokens - 1)
        max_nodes = tree_nodes if isinstance(tree, TreeLimits) else min(_MERGED_TREES * tree.num_nodes, pass_tokens - 1)
        block_size = max_len + max_nodes if block_size is None else min(block_size, max_len + max_nodes)
        blocks_per_request, fewest = (-(-(max_len + nodes) // block_size) for nodes in (max_nodes, tree_nodes))
        num_blocks = max_batch * blocks_per_request if num_blocks is None else num_blocks
        if num_blocks < fewest:
            raise UsageError(
                f"num_blocks={num_blocks} of block_size={block_size} hold {num_blocks * block_size} tokens, and one request of "
                f"max_len={max_len} with a tree of {tree_nodes} drafted tokens takes {max_len + tree_nodes}: give {fewest} blocks or more, "
                f"a smaller max_len or a smaller tree"
            )
        return cls(
            tree_nodes=tree_nodes,
            max_nodes=max_nodes,
            block_size=block_size,
            blocks_per_request=blocks_per_request,
            num_blocks=num_blocks,
        )

    def make_cache(self, shape: KVShape) -> KVCache:
        """An empty cache of these sizes."""
        storage = KVStorage(shape, num_blocks=self.num_blocks, block_size=self.block_size)
        return KVCache(storage, blocks_per_request=self.blocks_per_request)
