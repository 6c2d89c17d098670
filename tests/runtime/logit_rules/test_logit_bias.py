import numpy as np
import torch
from transformers import SequenceBiasLogitsProcessor

from flexspec.runtime.logit_rules.logit_bias import LogitBias


def test_it_adds_as_hugging_face_does() -> None:
    bias = {5: 1.5, 0: -3.25, 7: 100.0}
    logits = np.random.default_rng(0).standard_normal(8).astype(np.float32)
    theirs = SequenceBiasLogitsProcessor({(token,): value for token, value in bias.items()})
    expected = theirs(torch.tensor([[1, 2, 3]]), torch.from_numpy(logits.copy())[None])[0]
    LogitBias(bias).apply(logits, [5, 0])
    assert logits.tolist() == expected.tolist()


def test_the_lowest_bias_bans_however_large_the_logit() -> None:
    logits = np.array([1e30, 500.0, 1.0], dtype=np.float32)
    LogitBias({0: -100, 1: -99.5}).apply(logits, [])
    assert logits.tolist() == [-np.inf, 400.5, 1.0]


def test_tokens_that_a_draft_model_lacks_are_left_out() -> None:
    logits = np.zeros(3, dtype=np.float32)
    LogitBias({9: 3.0, 2: 1.0, 3: 5.0}).apply(logits, [])
    assert logits.tolist() == [0, 0, 1]


def test_a_biased_token_that_is_banned_stays_banned() -> None:
    logits = np.array([-np.inf, 0.0], dtype=np.float32)
    LogitBias({0: 100}).apply(logits, [])
    assert logits.tolist() == [-np.inf, 0]
