"""Tiny random decoders and a tiny tokenizer, made so that tests against them mean something.

Freshly initialised models repeat one token for ever and have zero biases and unit norms, which hides operators that ignore their
inputs. So matrices are scaled up, biases and norm weights are drawn at random, and `greedy_reference` asserts that the text varies.
"""

from typing import Any, Literal, get_args

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import (
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

Family = Literal["llama", "qwen2", "qwen3", "mistral", "opt", "gpt2"]
FAMILIES: tuple[Family, ...] = get_args(Family)

TINY_VOCAB = 288  # rows of every tiny model by default, and the size of `tiny_tokenizer()`
TINY_POSITIONS = 512
MIN_DISTINCT = 15  # distinct tokens expected in 120 greedy ones

SPECIAL_TOKENS = ("<bos>", "<eos>", "<pad>")

_MATRIX_SCALE = 8.0  # gives every family varied text, with logits of about unit variance


def tiny(family: Family, seed: int = 0, layers: int = 2, vocab: int = TINY_VOCAB, **overrides: Any) -> PreTrainedModel:
    """A float32 random model of `family` in eval mode on the CPU: hidden 32, 4 query heads, 2 KV heads where the family has them.

    It has no EOS, BOS or padding token unless `overrides` (config fields by the family's own names) give them.
    """
    return tiny_of(_config(family, layers, vocab, overrides), seed)


def tiny_of(config: PreTrainedConfig, seed: int = 0) -> PreTrainedModel:
    """A float32 random model with any config, as `tiny` makes them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module: PreTrainedModel = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config)
        with torch.no_grad():
            for parameter in module.parameters():
                _enliven(parameter)
    module.generation_config.eos_token_id = config.eos_token_id
    if getattr(config, "attn_logit_softcapping", None) is not None:
        module.set_attn_implementation("eager")  # SDPA, which some versions choose, has no soft cap
    return module.eval()


def greedy_reference(module: nn.Module, ids: list[int], n: int, *, min_distinct: int | None = None) -> list[int]:
    """The `n` tokens that Hugging Face's greedy `generate` adds to `ids` (fewer if the model has an EOS and emits it).

    Asserts that they hold at least `min_distinct` different tokens: by default 15 from 120 tokens up, nothing below.
    """
    tokens = torch.tensor([ids])  # [1, prompt]
    with torch.no_grad():
        output = module.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=n, do_sample=False)
    new = output[0, len(ids) :].tolist()
    wanted = min_distinct if min_distinct is not None else (MIN_DISTINCT if n >= 120 else 1)
    assert len(set(new)) >= wanted, f"degenerate reference: {len(set(new))} distinct tokens in {len(new)}, wanted {wanted}"
    return new


def random_prompt(length: int, seed: int = 0, vocab: int = TINY_VOCAB) -> list[int]:
    """`length` token ids drawn uniformly, the tokenizer's special ones left out."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(len(SPECIAL_TOKENS), vocab, (length,), generator=generator).tolist()


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of `TINY_VOCAB` tokens: 3 special ones, all 256 bytes, 29 merges, and a chat template.

    Every text round-trips; CJK characters and emoji take two to four tokens each, so a token may end inside a character.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *alphabet])}
    merges = [_merge(pair) for pair in _MERGES]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    assert len(vocab) == TINY_VOCAB
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    bos, eos, pad = SPECIAL_TOKENS
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=bos, eos_token=eos, pad_token=pad, clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = (
        "{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    return tokenizer


# Pairs of texts that merge, in order of rank. The last three join the first two bytes of 日, 本 and of most emoji.
_MERGES: list[tuple[bytes, bytes]] = [
    (b"t", b"h"),
    (b"th", b"e"),
    (b"i", b"n"),
    (b"e", b"r"),
    (b"a", b"n"),
    (b"o", b"n"),
    (b"r", b"e"),
    (b"o", b"r"),
    (b"s", b"t"),
    (b"e", b"n"),
    (b"a", b"t"),
    (b"l", b"l"),
    (b"o", b"u"),
    (b"in", b"g"),
    (b"an", b"d"),
    (b" ", b"the"),
    (b" ", b"t"),
    (b" ", b"a"),
    (b" ", b"s"),
    (b" ", b"w"),
    (b" ", b"of"),
    (b"o", b"f"),
    (b" ", b"and"),
    (b"h", b"e"),
    (b"he", b"ll"),
    (b"hell", b"o"),
    (b"\xe6", b"\x97"),
    (b"\xe6", b"\x9c"),
    (b"\xf0", b"\x9f"),
]


def _merge(pair: tuple[bytes, bytes]) -> tuple[str, str]:
    left, right = (_byte_level(part) for part in pair)
    return left, right


def _byte_level(raw: bytes) -> str:
    """The printable stand-ins that byte-level BPE uses for `raw`: printable Latin-1 as itself, the others from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return "".join(chr(byte) if byte in printable else chr(0x100 + others.index(byte)) for byte in raw)


def _enliven(parameter: nn.Parameter) -> None:
    if parameter.dim() >= 2:
        parameter.mul_(_MATRIX_SCALE)
    else:  # a bias starts at 0, a norm weight at 1
        parameter.add_(0.1 * torch.randn_like(parameter))


def _config(family: Family, layers: int, vocab: int, overrides: dict[str, Any]) -> PreTrainedConfig:
    common: dict[str, Any] = {
        "vocab_size": vocab,
        "eos_token_id": None,
        "bos_token_id": None,
        "pad_token_id": None,
        "tie_word_embeddings": False,
    }
    rotary = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": TINY_POSITIONS,
    }
    match family:
        case "llama":
            return LlamaConfig(**(common | rotary | overrides))
        case "qwen2":
            return Qwen2Config(**(common | rotary | overrides))
        case "qwen3":
            return Qwen3Config(**(common | rotary | overrides))
        case "mistral":
            return MistralConfig(**(common | rotary | {"sliding_window": 8} | overrides))
        case "opt":
            sizes = {"hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 64, "num_hidden_layers": layers, "num_attention_heads": 4}
            return OPTConfig(**(common | sizes | {"max_position_embeddings": TINY_POSITIONS} | overrides))
        case "gpt2":
            sizes = {"n_embd": 32, "n_layer": layers, "n_head": 4, "n_positions": TINY_POSITIONS}
            return GPT2Config(**(common | sizes | overrides))
