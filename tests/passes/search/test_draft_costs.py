"""What drafting takes: equation 10, spelled out for single trees."""

import numpy as np
import pytest
from transformers import LlamaConfig

from flexspec.acceptance import AcceptanceTable
from flexspec.parallel import BESIDE, OWN_DEVICE
from flexspec.passes.search.collectives import Collectives
from flexspec.passes.search.draft_costs import Drafting, DraftPasses
from flexspec.passes.search.drafter_record import DrafterRecord
from flexspec.passes.search.hardware import load_hardware
from flexspec.passes.search.records import ModelRecord, model_record
from flexspec.passes.search.space import DraftOption, Workload
from flexspec.passes.search.times import OperatorTimes
from flexspec.passes.search.trees import GrownTree

TREE = GrownTree(size=7, expected=2.6, levels={"ssm": (2, 3, 2)}, branch=2)
WORKLOAD = Workload(context=200, new_tokens=100, max_tree=7)
REQUESTS = (1, 4)


@pytest.fixture(scope="module")
def ssm() -> ModelRecord:
    config = LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=96
    )
    return model_record(config, name="ssm")


def drafting(*drafters: DrafterRecord) -> Drafting:
    found = Drafting(drafters, WORKLOAD, AcceptanceTable())
    found.compare_only(tuple(one.name for one in drafters), [TREE])
    return found


def one_pass(record: ModelRecord, times: OperatorTimes, requests: int, tokens: int) -> float:
    """Seconds of all operators, the places one by one."""
    total = 0.0
    for place in (record.embedding, record.head, *(record.blocks[kind] for kind in record.layers)):
        read: set[int] = set()
        for one in place.operators:
            if one.kind == "linear":
                total += times.linear(requests * tokens, one.in_columns, one.out_columns, launches=int(one.reads[0] not in read))
                read.add(one.reads[0])
            elif one.kind == "attention":
                total += times.attention(requests, tokens, WORKLOAD.mean_context, one.heads, one.kv_heads, one.head_dim)
            elif one.kind == "embedding":
                total += times.embedding(requests * tokens, one.out_columns)
            elif one.kind != "view":
                total += times.rows(one.kind, requests * tokens, one.in_columns, one.out_columns)
    return total


def test_a_pass_for_every_level_and_the_first_over_what_was_emitted(ssm: ModelRecord) -> None:
    hardware = load_hardware("a10gx4")
    times, host = OperatorTimes(hardware, "bfloat16"), hardware.host_times
    models = drafting(DrafterRecord(name="ssm", model=ssm))
    passes = DraftPasses(models, times, Collectives(hardware), REQUESTS)
    seconds = passes.seconds("ssm", ("ssm",))
    for row, requests in enumerate(REQUESTS):
        # Three emitted tokens, then the first level's two nodes, then the second's three.
        wanted = sum(one_pass(ssm, times, requests, width) for width in (3, 2, 3)) + 3 * host.level_us * 1e-6
        assert seconds[row, 0] == pytest.approx(wanted)
        nodes = host.step_us + requests * host.request_us + requests * TREE.size * host.node_us
        assert passes.host(("ssm",))[row, 0] == pytest.approx(nodes * 1e-6)


def test_a_drafter_elsewhere_is_ordered_every_pass_and_sends_its_logits(ssm: ModelRecord) -> None:
    hardware = load_hardware("a10gx4")
    links = Collectives(hardware)
    models = drafting(DrafterRecord(name="ssm", model=ssm))
    passes = DraftPasses(models, OperatorTimes(hardware, "bfloat16"), links, REQUESTS)
    found = {}
    for where in (BESIDE, OWN_DEVICE):
        option = DraftOption(placement=(("ssm", where),))
        found[where] = models.costs(
            option,
            passes,
            rows=np.array([0, 1]),
            in_flight=np.array([1, 8]),
            element_bytes=2,
            cache_bytes=1,
            driver=(0, 3) if where == OWN_DEVICE else None,
        )
    beside, own = found[BESIDE], found[OWN_DEVICE]
    for row, requests in enumerate(REQUESTS):
        logits = [requests * width * 96 * 4 for width in (1, 2, 3)]
        messages = sum(links.command(0, 3) + links.point_to_point(3, 0, size) for size in logits)
        assert own.apart[row, 0] == pytest.approx(beside.beside[row, 0] + messages)
    assert not own.beside.any() and not beside.apart.any()
    weights, slots = ssm.parameters * 2, 320  # 300 tokens, a root and 7 nodes, in pages of 16
    assert own.apart_bytes[:, 0] == pytest.approx([weights + requests * 2 * 2 * 2 * 16 * slots for requests in (1, 8)])


def test_lookups_are_the_host_s(ssm: ModelRecord) -> None:
    hardware = load_hardware("a10gx4")
    models = drafting(DrafterRecord(name="ssm"))
    passes = DraftPasses(models, OperatorTimes(hardware, "bfloat16"), Collectives(hardware), REQUESTS)
    assert not passes.seconds("ssm", ("ssm",)).any() and passes.host(("ssm",)).all()
