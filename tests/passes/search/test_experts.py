"""The search divides the experts of a real mixture: their weights are most of it."""

from transformers import MixtralConfig

from flexspec.passes.search.assign import Assigner
from flexspec.passes.search.collectives import Collectives
from flexspec.passes.search.hardware import load_hardware
from flexspec.passes.search.pass_costs import PassCosts
from flexspec.passes.search.records import model_record
from flexspec.passes.search.times import OperatorTimes


def test_experts_of_mixtral_are_divided() -> None:
    record = model_record(MixtralConfig())
    assert round(record.parameters / 1e8) == 467
    hardware, block = load_hardware("a10gx4"), record.blocks["block_0"]
    costs = PassCosts(OperatorTimes(hardware, "bfloat16"), Collectives(hardware), requests=[1], tokens=[8], context=512)
    place = [one.kind for one in block.operators].index("experts")
    (whole, *_), (half, *_), (quarter, *_) = (Assigner(block, tp).ways(costs.of_one(0, 0, range(tp))) for tp in (1, 2, 4))
    assert half.names[place].startswith("inner:") and quarter.names[place].startswith("inner:")
    assert whole.seconds > 1.8 * half.seconds > 3 * quarter.seconds
    assert 0.5 <= half.weights / whole.weights < 0.51 and 0.25 <= quarter.weights / whole.weights < 0.26
