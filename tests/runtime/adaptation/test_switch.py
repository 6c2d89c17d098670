import itertools

import pytest

from flexspec.runtime.adaptation.switch import DrafterSwitch

RATE, STEP_S = 100.0, 0.01  # a token a step


def run(switch, steps, gain, seconds):
    """Steps in which the drafter, when asked, brings `gain(step)` tokens and takes `seconds`; how often, when and how long it was asked."""
    asked = []
    for step in range(steps):
        ask = switch.asks()
        if ask:
            switch.drafted(seconds, is_steady=True)
            switch.judge(gain(step), RATE)
            asked.append(step)
        switch.passed(STEP_S + ask * seconds)
    return asked


def test_a_useless_drafter_is_soon_off_and_then_takes_half_a_percent():
    switch = DrafterSwitch()
    asked = run(switch, 5000, lambda step: 0.0, 0.005)
    assert not switch.is_on() and switch.share_on == 0, "there were no steps of other kinds"
    assert asked[:12] == list(range(12)) and asked[12] > 30
    assert sum(0.005 for step in asked if step > 11) <= 0.0051 * 5000 * STEP_S
    assert len(asked) > 20, "it is still tried"


def test_a_good_drafter_stays_on():
    switch = DrafterSwitch()
    assert switch.share_on == 1
    assert len(run(switch, 500, lambda step: 1.2, 0.005)) == 500 and switch.share_on == 1


def test_a_drafter_that_becomes_good_is_found_again():
    switch = DrafterSwitch()
    run(switch, 500, lambda step: 0.0, 0.005)
    assert not switch.is_on()
    asked = run(switch, 3000, lambda step: 3.0, 0.005)
    assert switch.is_on() and len(asked) > 1500


def test_it_does_not_flap_at_the_threshold():
    switch = DrafterSwitch()
    states = []
    for step in range(2000):
        if switch.asks():
            switch.drafted(0.005, is_steady=True)
            switch.judge(0.5 + (0.1 if step % 2 else -0.1), RATE)
        switch.passed(STEP_S)
        states.append(switch.is_on())
    assert sum(a != b for a, b in itertools.pairwise(states)) <= 2


def test_a_drafter_that_costs_next_to_nothing_is_always_asked():
    switch = DrafterSwitch()
    assert len(run(switch, 300, lambda step: 0.0, 0.0001)) == 300


def test_reading_prompts_is_no_measure_of_its_cost():
    switch = DrafterSwitch()
    for step in range(600):
        assert switch.asks()
        is_steady = step % 60 > 0
        switch.drafted(0.005 if is_steady else 0.2, is_steady=is_steady)
        switch.judge(1.2, RATE)
    assert switch.is_on() and switch.seconds == pytest.approx(0.005)


@pytest.mark.parametrize("reading_s", [0.02, 0.1])
def test_what_it_reads_when_tried_counts_towards_that_before_it_is_asked(reading_s):
    switch = DrafterSwitch()
    switch.drafted(reading_s, is_steady=False, text_tokens=400)
    run(switch, 20, lambda step: 0.0, 0.005)
    assert not switch.is_on()
    spent = 0.0
    for step in range(1, 5001):
        if switch.asks(text_tokens=400):
            switch.drafted(reading_s, is_steady=False, text_tokens=400)
            switch.judge(0.0, RATE)
            spent += reading_s
        switch.passed(STEP_S)
        assert spent <= 0.0051 * (step + 20) * STEP_S, "at no time has it taken more than its share"
    assert spent > 0.003 * 5000 * STEP_S


def test_a_long_text_is_read_for_a_try_only_behind_a_long_answer():
    switch = DrafterSwitch()
    switch.drafted(0.05, is_steady=False, text_tokens=1000)
    run(switch, 20, lambda step: 0.0, 0.005)
    for _ in range(5000):
        assert not switch.asks(text_tokens=1000, decoded_s=0.5)
        switch.passed(STEP_S)
    assert switch.asks(text_tokens=1000, decoded_s=0.6), "it has saved up for it"
    assert switch.asks(text_tokens=100, decoded_s=0.11) and not switch.asks(text_tokens=100, decoded_s=0.09)


def test_it_is_asked_where_cheaper_drafters_promise_little():
    switch = DrafterSwitch()
    asked = {0.1: 0, 3.0: 0}
    for step in range(2000):
        promised = 0.1 if step % 3 == 0 else 3.0
        if switch.asks(promised):
            asked[promised] += 1
            switch.drafted(0.005, is_steady=True, promised=promised)
            switch.judge(1.2 if promised < 1 else 0.0, RATE, promised)
        switch.passed(STEP_S)
    assert switch.is_on(0.1) and not switch.is_on(3.0) and switch.share_on == 0.5
    assert asked[0.1] == 667 and 12 < asked[3.0] < 40
