"""The feature-level draft head: one decoder layer over an LLM's hidden states (EAGLE, Li et al. 2024; fused states as in EAGLE-3, 2025)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flexspec.ir.ops import ATTENTION

HEAD_STATE = "layer"
"""The submodule of a head whose output is the feature of what is drafted next."""


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The shape of a head.

    Attributes:
        hidden_size: of the LLM, and of the head.
        num_heads: query heads.
        num_kv_heads: key and value heads.
        head_dim: even.
        intermediate_size: of the gated MLP.
        rope_theta: base of the rotary frequencies.
        norm_eps: of all norms.
        states: names of the LLM's submodules whose outputs are the hidden states that the head reads, first layers first.
    """

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rope_theta: float
    norm_eps: float
    states: Sequence[str]

    @property
    def feature_size(self) -> int:
        """Columns of what `SpeculationHead.forward` takes as features."""
        return (len(self.states) + 1) * self.hidden_size


class RMSNorm(nn.RMSNorm):
    """Computed in float32, whatever comes in: training runs the linears around it in bfloat16."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] → the same."""
        return super().forward(x.float())


class HeadLayer(nn.Module):
    """Pre-norm attention with rotary positions, and a gated MLP."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        hidden, dim = config.hidden_size, config.head_dim
        self.head_dim = dim
        self.scale = dim**-0.5
        self.attention_norm = RMSNorm(hidden, eps=config.norm_eps)
        self.q_proj = nn.Linear(hidden, config.num_heads * dim, bias=False)
        self.k_proj = nn.Linear(hidden, config.num_kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(hidden, config.num_kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(config.num_heads * dim, hidden, bias=False)
        self.mlp_norm = RMSNorm(hidden, eps=config.norm_eps)
        self.gate_proj = nn.Linear(hidden, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, hidden, bias=False)
        frequencies = config.rope_theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        self.frequencies: Tensor
        self.register_buffer("frequencies", frequencies.float(), persistent=False)

    def forward(self, x: Tensor, position_ids: Tensor) -> Tensor:
        """[batch, tokens, hidden] → the same, one causal sequence a row."""
        q, k, v = self.project(x, position_ids)
        return self.finish(x, ATTENTION(q, k, v, self.scale, None, None, None))

    def project(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [batch, tokens, heads, head_dim], the first two rotated to their positions."""
        normed = self.attention_norm(x)
        q, k, v = (self._heads(linear(normed)) for linear in (self.q_proj, self.k_proj, self.v_proj))
        angles = position_ids[..., None].float() * self.frequencies  # [batch, tokens, head_dim / 2]
        angles = torch.cat([angles, angles], dim=-1)
        cos, sin = angles.cos().to(x.dtype).unsqueeze(2), angles.sin().to(x.dtype).unsqueeze(2)
        return _rotated(q, cos, sin), _rotated(k, cos, sin), v

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """What follows attention: `attended` is [batch, tokens, heads, head_dim]."""
        x = x + self.o_proj(attended.flatten(2))
        normed = self.mlp_norm(x)
        finished: Tensor = x + self.down_proj(F.silu(self.gate_proj(normed)) * self.up_proj(normed))
        return finished

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-1], x.shape[-1] // self.head_dim, self.head_dim)


class StateEncoder(nn.Module):
    """Fuses the LLM's hidden states at a token into one feature."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        count = len(config.states)
        self.norms = nn.ModuleList(RMSNorm(config.hidden_size, eps=config.norm_eps) for _ in range(count))
        self.fuse = nn.Linear(count * config.hidden_size, config.hidden_size, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """[..., states * hidden] → [..., hidden]."""
        parts = states.chunk(len(self.norms), dim=-1)
        normed = torch.cat([norm(part) for norm, part in zip(self.norms, parts, strict=True)], dim=-1)
        feature: Tensor = self.fuse(normed.to(self.fuse.weight.dtype))
        return feature


class SpeculationHead(nn.Module):
    """Drafts the token after next: fed with a token and a feature of the text before it.

    For the text t_0 … t_n, entry j holds token t_(j+1) and the feature of position j, and its logits are about t_(j+2). The feature is
    the LLM's own, through the encoder, as far as there is text; further on it is the hidden state of the entry before.

    Args:
        config: the shape.
        embedding: the LLM's, [vocab, hidden]; shared.
        lm_head: rows of the LLM's output matrix, [draft vocab, hidden].
    """

    def __init__(self, config: HeadConfig, *, embedding: Tensor, lm_head: Tensor) -> None:
        super().__init__()
        self.head_config = config
        self.embed_tokens = nn.Embedding(len(embedding), config.hidden_size, _weight=embedding)
        self.embed_tokens.requires_grad_(False)
        self.encoder = StateEncoder(config)
        self.token_norm = RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.feature_norm = RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.join = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.layer = HeadLayer(config)
        self.norm = RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, len(lm_head), bias=False)
        self.lm_head.weight = nn.Parameter(lm_head, requires_grad=False)

    def entry(self, input_ids: Tensor, features: Tensor) -> Tensor:
        """What enters the layer: [batch, tokens], [batch, tokens, hidden] → [batch, tokens, hidden]."""
        tokens = self.token_norm(self.embed_tokens(input_ids))
        joined: Tensor = self.join(torch.cat([tokens, self.feature_norm(features)], dim=-1))
        return joined

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., hidden] → [..., draft vocab]."""
        logits: Tensor = self.lm_head(self.norm(hidden))
        return logits

    def forward(self, input_ids: Tensor, position_ids: Tensor, features: Tensor) -> Tensor:
        """Logits [batch, tokens, draft vocab]; the hidden state for the next feature is the output of `layer`.

        Args:
            input_ids: [batch, tokens].
            position_ids: [batch, tokens].
            features: [batch, tokens, states * hidden + hidden] the LLM's states and the head's own one, of which one is zero: an
                encoder without biases makes nothing of nothing.
        """
        hidden = self.head_config.hidden_size
        states, own = features[..., :-hidden], features[..., -hidden:]
        return self.logits(self.layer(self.entry(input_ids, self.encoder(states) + own), position_ids))


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return x * cos + turned * sin
