import pytest
import torch

from flexspec.codegen.device_check.tree_batch import BLOCK_SIZE, tree_batch, visible
from flexspec.ir.ops.tree_attention import visible_slots


@pytest.mark.parametrize(("nodes", "context"), [(1, 0), (1, 20), (7, 0), (40, 33)])
def test_nodes_see_the_context_and_their_own_path(nodes: int, context: int) -> None:
    batch = tree_batch(nodes, context, vocab=50)
    shown = torch.from_numpy(visible(batch))
    lens, starts, bits = (torch.from_numpy(array.copy()) for array in (batch.context_lens, batch.tail_starts, batch.tail_bits))
    assert shown.shape == (nodes, context + nodes)
    for node in range(nodes):
        assert shown[node].nonzero()[:, 0].tolist() == visible_slots(node, 0, lens, starts, bits).tolist()
        assert int(shown[node].sum()) == batch.positions[node] + 1
        assert shown[node, context + node]
    assert sorted(batch.block_tables[0].tolist()) == list(range(-(-(context + nodes) // BLOCK_SIZE)))
    assert batch.token_ids.max() < 50 and batch.output_rows.tolist() == list(range(nodes))
