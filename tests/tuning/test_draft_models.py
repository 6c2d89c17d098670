"""New draft models: their shapes, for LLMs of all kinds, and what they begin with."""

import pytest
import torch

from flexspec.errors import UsageError
from flexspec.models.output_norm import output_norm_name
from flexspec.tuning.batches import make_batch
from flexspec.tuning.config import DraftModelSettings
from flexspec.tuning.draft_models import check_settings, head_config, own_copy, spread_layers, state_names
from flexspec.tuning.head_objective import HeadObjective
from tiny_models import FAMILIES, Family, tiny
from tuning_cases import loaded, member, random_states, same, text, weights_of


def test_a_head_shares_the_embedding_and_its_rows_of_the_output_matrix() -> None:
    llm = loaded().module
    head = member("head").objective.module
    assert head.embed_tokens.weight.data_ptr() == llm.get_input_embeddings().weight.data_ptr(), "shared, not copied"
    assert torch.equal(head.lm_head.weight, llm.get_output_embeddings().weight[torch.arange(40) * 7])


def test_a_head_begins_by_handing_on_the_last_state() -> None:
    head = member("head").objective.module
    hidden = head.head_config.hidden_size
    states = torch.randn(1, 50, len(head.head_config.states) * hidden)
    entered = head.entry(torch.arange(50)[None], head.encoder(states))
    last = states[..., -hidden:]
    assert torch.nn.functional.cosine_similarity(entered, last, dim=-1).mean() > 0.9


def test_new_weights_repeat_by_seed() -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    one, same_seed, other = (weights_of(member("head", seed=seed).objective.module) for seed in (4, 4, 5))
    assert same(one, same_seed) and not same(one, other) and torch.equal(torch.get_rng_state(), state)


def test_an_ssm_has_weights_of_its_own() -> None:
    llm = loaded().module
    made = member("ssm", layers=3)
    ssm = made.objective.module
    assert made.description.layers == (0, 2, 3) == spread_layers(llm, 3)
    assert torch.equal(ssm.get_submodule("model.layers.1.mlp.up_proj").weight, llm.get_submodule("model.layers.2.mlp.up_proj").weight)
    shared = {id(parameter) for parameter in llm.parameters()}
    assert {name for name, parameter in ssm.named_parameters() if id(parameter) in shared} == {
        "model.embed_tokens.weight",
        "lm_head.weight",
    }
    assert set(made.objective.weights()) == {name for name, _ in ssm.named_parameters()} - {"model.embed_tokens.weight", "lm_head.weight"}


def test_a_tied_output_matrix_is_stored_by_nobody() -> None:
    model = own_copy(tiny("llama", tie_word_embeddings=True))
    assert not model.get_input_embeddings().weight.requires_grad
    assert all("embed" not in name and "head" not in name for name, value in model.named_parameters() if value.requires_grad)


@pytest.mark.parametrize("layers", [1, 2, 3, 4, 12])
def test_a_head_reads_states_from_below_and_above_each_once(layers: int) -> None:
    llm = tiny("llama", layers=layers)
    states = state_names(llm, "head")
    assert len(set(states)) == len(states) == min(layers, 2) + 1 and states[-1] == "model.norm" == state_names(llm, "ssm")[0]
    if layers == 12:
        assert states[:2] == ("model.layers.3", "model.layers.8")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_for_every_family(family: Family) -> None:
    llm = tiny(family, layers=3)
    states = state_names(llm, "head")
    shape = head_config(llm, states)
    assert (shape.hidden_size, shape.num_heads, shape.head_dim, shape.states) == (32, 4, 8, states)
    assert (shape.num_kv_heads, shape.intermediate_size) == ((4, 64 if family == "opt" else 128) if family in ("opt", "gpt2") else (2, 64))
    norm = llm.get_submodule(output_norm_name(llm))
    assert norm.weight.shape == (32,)


def test_rotary_positions_need_pairs() -> None:
    assert head_config(tiny("gpt2", n_embd=36), ("transformer.ln_f",)).head_dim == 8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "ssm", "layers": 4}, "layers=4 is not allowed: LlamaForCausalLM has 4 layers, give a number from 1 to 3"),
        ({"kind": "ssm", "layers": 9}, "layers=9 is not allowed"),
        ({"kind": "head", "vocab_trim": 289}, "vocab-trim=289 is not allowed: the vocabulary has 288 tokens"),
    ],
)
def test_draft_models_that_do_not_fit_the_llm(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_settings(loaded(), DraftModelSettings(**settings))  # type: ignore[arg-type]
    check_settings(loaded(), DraftModelSettings(kind="ssm", layers=3, vocab_trim=288))


def test_what_a_head_reads_and_predicts() -> None:
    """Entry j is fed token j + 1 and the LLM's state at j, and predicts token j + 2, where the LLM's state is that at j + 1."""
    texts = [text(9, 4), text(6, 5, seed=1)]
    batch = make_batch(texts, random_states(texts, 32), [0, 1])  # type: ignore[arg-type]
    objective = member("head").objective
    assert isinstance(objective, HeadObjective)
    with torch.no_grad():
        said = objective.predict(batch, depths=2)
        head = objective.module
        for row, (line, place) in enumerate(said.places.tolist()):
            assert said.token_ids[row] == texts[line].tokens[place]
            assert torch.equal(said.target[row], batch.states[line, place - 1])
            count = place - 1
            with torch.autocast("cpu", dtype=torch.bfloat16):
                features = torch.nn.functional.pad(batch.states[line : line + 1, :count], (0, 32))
                logits = head(batch.token_ids[line : line + 1, 1 : count + 1], torch.arange(count)[None], features)[0, -1]
            assert torch.allclose(head.lm_head(said.hidden[0, row]), logits.float(), atol=0.1, rtol=0.05)
            assert said.is_valid[:, row].tolist() == [True, place >= 3]
    assert sorted(map(tuple, said.places.tolist())) == [(0, 5), (0, 6), (0, 7), (0, 8), (1, 2), (1, 3), (1, 4), (1, 5)]


def test_what_an_ssm_predicts() -> None:
    texts = [text(9, 4), text(6, 6, seed=1)]
    batch = make_batch(texts, random_states(texts, 32), [0, 1])  # type: ignore[arg-type]
    objective = member("ssm").objective
    with torch.no_grad():
        said = objective.predict(batch, depths=3)
        logits = objective.module(batch.token_ids).logits
    assert len(said.places) == 9, "the first token of a text follows from nothing"
    for row, (line, place) in enumerate(said.places.tolist()):
        own = objective.module.lm_head(said.hidden[0, row])
        assert torch.allclose(own, logits[line, place - 1], atol=0.2, rtol=0.05)
        assert torch.equal(said.target[row], batch.states[line, place - 1]) and said.token_ids[row] == texts[line].tokens[place]
