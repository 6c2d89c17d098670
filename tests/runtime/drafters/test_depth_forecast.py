from flexspec.runtime.drafters.depth_forecast import DepthForecast


def test_what_costs_nothing_is_grown_in_full() -> None:
    assert [DepthForecast().depth(1, 0.0, most) for most in (1, 5, 30)] == [1, 5, 30]


def test_it_looks_one_level_past_what_it_has_seen() -> None:
    forecast = DepthForecast()
    depths = []
    for _ in range(8):
        depths.append(forecast.depth(2, 0.5, 16))
        forecast.observe([0.5] * depths[-1])
    assert depths == [1, 2, 3, 4, 6, 8, 12, 16], "rounded up, so that few depths are captured"


def test_levels_must_be_worth_their_pass() -> None:
    forecast = DepthForecast()
    forecast.observe([0.9, 0.6, 0.3, 0.1])
    assert [forecast.depth(1, worth, 16) for worth in (1.0, 0.7, 0.5, 0.2)] == [1, 2, 3, 4]
    assert forecast.depth(4, 0.5, 16) == 4, "more trees pay for more"
    assert forecast.depth(1, 0.05, 2) == 2


def test_it_follows_changes_and_comes_back() -> None:
    forecast = DepthForecast()
    for _ in range(30):
        forecast.observe([0.9, 0.8, 0.7])
    for _ in range(30):
        forecast.observe([0.1])
    assert forecast.depth(1, 0.5, 16) == 1, "a level above that is not worth it"
    for _ in range(30):
        forecast.observe([0.9])
    assert forecast.depth(1, 0.5, 16) == 4
