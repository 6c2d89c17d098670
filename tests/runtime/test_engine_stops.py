"""Where requests end: end of sequence, stop strings, caps, capacity, interruption."""

import pytest
import torch

from engine_reference import cached_tokens, plain
from flexspec.config import SamplingParams
from flexspec.runtime.engine import Engine
from flexspec.runtime.output import GenerationFailed, GenerationInterrupted
from flexspec.runtime.token_tree import TokenTree
from flexspec.tree_shape import TreeSpec
from toy_drafter import FixedDrafter, ToyDrafter
from toy_model import ToyModel
from toy_tokenizer import letters

VOCAB = 24
PROMPT = [3, 1]
GREEDY = SamplingParams(max_tokens=40)


def toy(**changes):
    return ToyModel(**{"vocab_size": VOCAB, "seed": 2, "max_pass_tokens": 64} | changes)


def engine_of(*, draft=None, widths=(), **options):
    drafters = [] if draft is None else [ToyDrafter(draft)]
    return Engine(toy(), drafters=drafters, tree=TreeSpec(widths=widths), **({"max_len": 128} | options))


def first_seen(tokens, start):
    """A place from `start` on whose token did not occur before it."""
    return next(place for place in range(start, len(tokens)) if tokens[place] not in tokens[:place])


@pytest.mark.parametrize("widths", [(), (4,), (1, 1, 1, 1, 1), (2, 2, 1)])
def test_the_first_end_of_sequence_ends_the_request_wherever_it_falls_in_a_step(widths):  # cases 7, 28
    tokens = plain(toy(), PROMPT, GREEDY)
    ends = sorted({first_seen(tokens, start) for start in range(12)})
    assert len(ends) > 5
    for end in ends:
        later = next(token for token in tokens[end + 1 :] if token not in tokens[: end + 1])
        engine = engine_of(draft=toy(), widths=widths, eos_token_ids=[later, tokens[end]], tokenizer=letters(VOCAB))
        output = engine.generate([PROMPT], GREEDY)[0]
        assert output.token_ids == tokens[: end + 1] and output.finish_reason == "stop"
        assert output.text == "".join(chr(ord("a") + token) for token in tokens[:end])
        assert 0 <= output.stats.accepted <= output.stats.drafted and 0 <= output.stats.acceptance_rate <= 1
        assert output.stats.new_tokens == end + 1 and output.stats.accepted + output.stats.steps in (end + 1, end + 2)


def test_ignore_eos_goes_on_and_special_tokens_have_no_text():
    tokens = plain(toy(), PROMPT, GREEDY)
    eos = tokens[3]
    engine = engine_of(draft=toy(), widths=(2, 1), eos_token_ids=[eos], tokenizer=letters(VOCAB, special=(eos,)))
    output = engine.generate([PROMPT], SamplingParams(max_tokens=40, ignore_eos=True))[0]
    assert output.token_ids == tokens and output.finish_reason == "length"
    assert output.text == "".join(chr(ord("a") + token) for token in tokens if token != eos)


def test_a_stop_before_the_cap_inside_a_run_of_accepted_tokens():  # case 8
    tokens = plain(toy(), PROMPT, GREEDY)
    end = first_seen(tokens, 3)
    engine = engine_of(draft=toy(), widths=(1,) * 7, eos_token_ids=[tokens[end]])
    output = engine.generate([PROMPT], SamplingParams(max_tokens=end + 3))[0]
    assert output.token_ids == tokens[: end + 1] and output.finish_reason == "stop"


def test_end_of_sequence_as_the_last_allowed_token_is_a_stop():
    tokens = plain(toy(), PROMPT, GREEDY)
    end = first_seen(tokens, 2)
    output = engine_of(eos_token_ids=[tokens[end]]).generate([PROMPT], SamplingParams(max_tokens=end + 1))[0]
    assert output.finish_reason == "stop" and len(output.token_ids) == end + 1


@pytest.mark.parametrize("widths", [(), (1, 1, 1), (2, 2, 1)])
@pytest.mark.parametrize("streaming", [False, True])
def test_stop_strings_end_text_ids_and_counts_together(widths, streaming):  # case 9
    whole = engine_of(tokenizer=letters(VOCAB)).generate([PROMPT], GREEDY)[0]
    for start in range(12):
        stop = whole.text[start : start + 2]
        begin = whole.text.index(stop)
        engine = engine_of(draft=toy(noise=0.2), widths=widths, tokenizer=letters(VOCAB))
        params = SamplingParams(max_tokens=40, stop=["no such text", stop])
        if streaming:
            chunks = list(engine.stream(PROMPT, params))
            output = chunks[-1].output
            assert "".join(chunk.text for chunk in chunks) == output.text
            assert [token for chunk in chunks for token in chunk.token_ids] == output.token_ids
        else:
            output = engine.generate([PROMPT], params)[0]
        assert output.text == whole.text[:begin] and output.finish_reason == "stop"
        assert output.token_ids == whole.token_ids[: begin + 2]
        assert output.stats.new_tokens == begin + 2


def test_text_that_only_began_like_a_stop_string_is_in_the_last_chunk():
    whole = engine_of(tokenizer=letters(VOCAB)).generate([PROMPT], SamplingParams(max_tokens=7))[0].text
    params = SamplingParams(max_tokens=7, stop=whole[-3:] + "!")
    chunks = list(engine_of(draft=toy(), widths=(1, 1), tokenizer=letters(VOCAB)).stream(PROMPT, params))
    assert chunks[-1].text.endswith(whole[-3:]) and "".join(chunk.text for chunk in chunks) == whole == chunks[-1].output.text


@pytest.mark.parametrize("cap", [1, 2, 3, 4, 5, 6, 11])
@pytest.mark.parametrize("widths", [(4,), (1, 1, 1, 1), (2, 2, 1)])
def test_exactly_the_cap(cap, widths):  # case 10
    engine = engine_of(draft=toy(), widths=widths)
    output = engine.generate([PROMPT], SamplingParams(max_tokens=cap))[0]
    assert output.token_ids == plain(toy(), PROMPT, GREEDY)[:cap] and output.finish_reason == "length"
    stats = output.stats
    assert stats.accepted == cap - stats.steps, "drafts are never deeper than what may still be emitted, so every pass has its bonus token"


@pytest.mark.parametrize("prompt_length", [1, 60, 62, 63])
@pytest.mark.parametrize("widths", [(), (1, 1, 1, 1, 1), (2, 2, 1), (5,)])
def test_the_draft_shortens_towards_the_capacity(prompt_length, widths):  # case 12
    prompt = [token % VOCAB for token in range(prompt_length)]
    model = toy(max_positions=64)
    engine = Engine(model, drafters=[ToyDrafter(toy())], tree=TreeSpec(widths=widths), max_len=64)
    output = engine.generate([prompt], SamplingParams(max_tokens=1000))[0]
    assert len(prompt) + len(output.token_ids) == 64 and output.finish_reason == "length"
    assert output.token_ids == plain(model, prompt, SamplingParams(max_tokens=1000), max_len=64)


def test_a_draft_that_is_always_wrong():  # case 2
    wrong = FixedDrafter(lambda text: TokenTree(tokens=[text[-1], (toy().logits_of(text).argmax() + 1) % VOCAB], parents=[-1, 0]))
    output = Engine(toy(), drafters=[wrong], tree=TreeSpec(widths=(1,)), max_len=128).generate([PROMPT], GREEDY)[0]
    assert output.token_ids == plain(toy(), PROMPT, GREEDY)
    assert output.stats.accepted == 0 and output.stats.drafted == 38 and output.stats.tokens_per_step == 1


def test_a_larger_tree_never_accepts_less():  # case 4
    def chain(text):
        first = int(toy().logits_of(text).argmax())
        return [text[-1], first, int(toy().logits_of([*text, first]).argmax())]

    def steps(make_tree):
        drafter = FixedDrafter(make_tree)
        output = Engine(toy(), drafters=[drafter], tree=TreeSpec(widths=(2, 1)), max_len=128).generate([PROMPT], GREEDY)[0]
        assert output.token_ids == plain(toy(), PROMPT, GREEDY)
        return output.stats.steps

    narrow = steps(lambda text: TokenTree(tokens=chain(text), parents=[-1, 0, 1]))
    for order in ([-1, 0, 1, 0], [-1, 0, 0, 2]):

        def wide(text, order=order):
            root, first, second = chain(text)
            other = (first + 1) % VOCAB
            return TokenTree(tokens=[root, first, second, other] if order[2] == 1 else [root, other, first, second], parents=order)

        assert steps(wide) == narrow == 14


def test_ctrl_c_in_generate_hands_over_what_was_produced_and_leaves_the_engine_usable(monkeypatch):
    engine = engine_of(draft=toy(noise=0.3), widths=(2, 1), max_batch=2)
    forward, passes = engine.model.forward, 0

    def interrupted_in_the_fifth_pass(*arguments):
        nonlocal passes
        passes += 1
        if passes == 5:
            raise KeyboardInterrupt
        return forward(*arguments)

    monkeypatch.setattr(engine.model, "forward", interrupted_in_the_fifth_pass)
    with pytest.raises(GenerationInterrupted) as caught:
        engine.generate([PROMPT, [1], [2]], GREEDY)
    assert [output.finish_reason for output in caught.value.outputs] == ["abort"] * 3
    produced = [output.token_ids for output in caught.value.outputs]
    assert len(produced[0]) >= 4 and produced[2] == []
    assert produced[0] == plain(toy(), PROMPT, GREEDY)[: len(produced[0])]
    assert not engine.has_work and not engine.cache.request_ids
    assert engine.generate([PROMPT], GREEDY)[0].token_ids == plain(toy(), PROMPT, GREEDY)


def test_ctrl_c_in_a_stream_hands_over_what_was_produced(monkeypatch):
    engine = engine_of(draft=toy(), widths=(2, 1), tokenizer=letters(VOCAB))
    stream = engine.stream(PROMPT, GREEDY)
    shown = [next(stream), next(stream)]

    def interrupted(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.model, "forward", interrupted)
    with pytest.raises(GenerationInterrupted) as caught:
        next(stream)
    (output,) = caught.value.outputs
    assert output.token_ids == [token for chunk in shown for token in chunk.token_ids]
    assert output.text == "".join(chunk.text for chunk in shown) and output.finish_reason == "abort"
    assert not engine.has_work and not engine.cache.request_ids


def test_logits_that_are_not_numbers_end_the_request_and_leave_the_engine_usable(monkeypatch):
    engine = engine_of()
    with monkeypatch.context() as patch:
        patch.setattr(engine.model, "forward", lambda batch, kv: torch.full((len(batch.output_rows), VOCAB), torch.nan))
        (output,) = engine.generate([PROMPT], GREEDY)
    assert output.token_ids == [] and output.finish_reason == "error" and "nan" in str(output.error)
    with pytest.raises(GenerationFailed, match="nan"):
        output.raise_for_error()
    assert not engine.has_work and not engine.cache.request_ids
    assert engine.generate([PROMPT], GREEDY)[0].token_ids == plain(toy(), PROMPT, GREEDY)


def test_an_interrupt_in_a_pass_does_not_disturb_other_requests(monkeypatch):
    engine = engine_of(draft=toy(noise=0.3), widths=(2, 1))
    other = engine.add(PROMPT, GREEDY)
    texts = []
    forward, passes = engine.model.forward, 0

    def interrupted_in_the_fourth_pass(*arguments):
        nonlocal passes
        passes += 1
        result = forward(*arguments)
        if passes == 4:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(engine.model, "forward", interrupted_in_the_fourth_pass)
    engine.observer = lambda record: texts.extend(record.token_ids) if record.request_id == other else None
    with pytest.raises(GenerationInterrupted):
        engine.generate([[1]], GREEDY)
    while engine.has_work:
        engine.step()
    assert texts == plain(toy(), PROMPT, GREEDY)


def test_a_step_torn_while_it_is_applied_ends_what_was_running():
    engine = engine_of(draft=toy(), widths=(2, 1))
    engine.add(PROMPT, GREEDY)

    def fails(_record):
        raise RuntimeError("observer")

    engine.observer = fails
    with pytest.raises(RuntimeError, match="observer"):
        engine.step()
    assert not engine.has_work and not engine.cache.request_ids


def test_a_request_that_ended_in_a_torn_step_keeps_its_end():
    engine = engine_of(draft=toy(), widths=(2, 1), tokenizer=letters(VOCAB))
    whole = engine.generate([PROMPT], SamplingParams(max_tokens=5))[0]

    seen = []

    def interrupts_at_the_end(record):
        seen.extend(record.token_ids if record.request_id == 1 else [])
        if len(seen) == 5:
            raise KeyboardInterrupt

    engine.observer = interrupts_at_the_end
    with pytest.raises(GenerationInterrupted) as caught:
        engine.generate([PROMPT, [1]], [SamplingParams(max_tokens=5), GREEDY])
    ended, torn = caught.value.outputs
    assert (ended.finish_reason, ended.token_ids, ended.text) == ("length", whole.token_ids, whole.text)
    assert torn.finish_reason == "abort" and not engine.has_work


def test_observers_see_trees_paths_and_tokens():
    engine = engine_of(draft=toy(noise=0.3), widths=(2, 2))
    records = []
    engine.observer = records.append
    output = engine.generate([PROMPT], GREEDY)[0]
    assert [token for record in records for token in record.token_ids] == output.token_ids
    assert sum(record.tree.num_drafted for record in records) == output.stats.drafted
    assert sum(len(record.path) - 1 for record in records) == output.stats.accepted
    for record in records:
        assert [record.tree.tokens[node] for node in record.path[1:]] == record.token_ids[: len(record.path) - 1]


@pytest.mark.parametrize("end", range(12))
def test_at_the_end_the_cache_holds_exactly_the_kept_tokens(end, monkeypatch):
    tokens = plain(toy(), PROMPT, GREEDY)
    stop = first_seen(tokens, end)
    engine = engine_of(draft=toy(), widths=(2, 1, 1, 1, 1), eos_token_ids=[tokens[stop]], max_batch=2)
    held = {}
    free = engine.cache.free

    def look_and_free(request_id):
        held[request_id] = cached_tokens(engine.cache, request_id)
        free(request_id)

    monkeypatch.setattr(engine.cache, "free", look_and_free)
    request_ids = [engine.add(PROMPT, GREEDY) for _ in range(2)]
    while engine.has_work:
        engine.step()
    assert held == {request_id: PROMPT + tokens[:stop] for request_id in request_ids}, "the last token is never fed"
