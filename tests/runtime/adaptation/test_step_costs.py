import pytest

from flexspec.runtime.adaptation.step_costs import ContextCost, StepCosts, measure_step_costs
from toy_model import ToyModel


def test_between_the_sizes_measured_costs_are_interpolated_and_beyond_them_they_go_on():
    costs = StepCosts({1: 6.0, 4: 6.6, 8: 8.0})
    assert [costs.seconds(tokens) for tokens in (1, 2, 4, 6, 8)] == pytest.approx([6.0, 6.2, 6.6, 7.3, 8.0])
    assert costs.seconds(16) > costs.seconds(9) > 8.0


def test_a_larger_pass_never_seems_cheaper():
    costs = StepCosts({1: 6.0, 2: 5.0, 4: 7.0})
    assert costs.seconds(2) == 6.0
    for _ in range(100):
        costs.observe(4, 1.0)
    seconds = [costs.seconds(tokens) for tokens in range(1, 9)]
    assert seconds == sorted(seconds)


def test_a_slower_machine_is_slower_at_every_size():
    costs = StepCosts({1: 1.0, 8: 2.0})
    for _ in range(100):
        costs.observe(3, 3.0)
    assert costs.seconds(3) == pytest.approx(3.0, rel=0.02)
    assert costs.seconds(8) / costs.seconds(1) == pytest.approx(2.0, rel=0.1)


def test_a_size_that_turns_out_dearer_is_learned():
    costs = StepCosts({1: 1.0, 2: 1.1, 4: 1.2})
    for _ in range(300):
        costs.observe(1, 1.0)
        costs.observe(4, 2.0)
    assert costs.seconds(4) / costs.seconds(1) == pytest.approx(2.0, rel=0.1)


def test_one_interrupted_pass_changes_little():
    costs = StepCosts({1: 1.0, 2: 1.1})
    costs.observe(2, 1000.0)
    assert costs.seconds(2) < 1.25


@pytest.mark.parametrize(("positions", "passes", "most"), [(None, 64, 24), (80, 64, 24), (16, 64, 64), (None, 8, 24), (None, 1, 8)])
def test_measuring_stays_within_the_model(positions, passes, most):
    model = ToyModel(max_positions=positions, max_pass_tokens=passes)
    table = measure_step_costs(model, most=most).table()
    assert min(table) == 1 and max(table) <= min(most, passes, positions or most)
    assert all(seconds > 0 for seconds in table.values())


def test_behind_a_longer_context_each_token_costs_more():
    costs = StepCosts({1: 6.0, 8: 8.0}, ContextCost(pass_s=0.01, token_s=0.02))
    assert [costs.seconds(tokens, 164.0) for tokens in (1, 8)] == pytest.approx([6.0 + 1.0 + 2.0, 8.0 + 1.0 + 16.0])
    assert costs.seconds(8) == costs.seconds(8, 64.0) == costs.seconds(8, 3.0) == 8.0
    for _ in range(200):
        costs.observe(8, 50.0, 164.0)
    assert costs.seconds(8, 164.0) == pytest.approx(50.0, rel=0.02)
    assert costs.seconds(8) < 25.0, "the context had its share"


def test_what_contexts_cost_is_measured(monkeypatch):
    def seconds(model, kv, batch):
        return 1e-3 + 1e-6 * int(batch.context_lens[0]) * (3 + batch.num_tokens)

    monkeypatch.setattr("flexspec.runtime.adaptation.step_costs._time", seconds)
    costs = measure_step_costs(ToyModel(max_pass_tokens=64), most=24)
    for tokens in (1, 16, 24):
        assert costs.seconds(tokens, 565.0) - costs.seconds(tokens, 65.0) == pytest.approx(500e-6 * (3 + tokens), rel=0.01)
