"""A compiled model as users hold it."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from flexspec.api.prompts import Message, Prompt, PromptEncoder, is_single
from flexspec.api.report import Plan
from flexspec.api.statistics_report import HasAlpha, describe_statistics
from flexspec.config import SamplingParams
from flexspec.errors import UsageError
from flexspec.runtime.distributed.replicated_engine import ReplicatedEngine
from flexspec.runtime.drafters.base import Drafter
from flexspec.runtime.engine import Engine
from flexspec.runtime.engine_statistics import EngineStatistics
from flexspec.runtime.output import Chunk, Output

_DEFAULT_PARAMS = SamplingParams()


class LLM:
    """What `flexspec.compile` returns.

    Attributes:
        engine: the step loop, for those who drive it themselves; with several devices, those of all replicas together.
        plan: what runs, and how.
        drafters: the drafters, in the order of `plan.strategy.drafters`, with names of their own; those that are SSMs count their `stats`.
        tokenizer: the model's, or None.
    """

    def __init__(
        self,
        engine: Engine | ReplicatedEngine,
        plan: Plan,
        *,
        drafters: Sequence[Drafter],
        tokenizer: PreTrainedTokenizerBase | None,
        bos_token_id: int | None,
        statistics_file: str | os.PathLike[str] | None = None,
    ) -> None:
        self.engine = engine
        self.plan = plan
        self.drafters = tuple(drafters)
        self.tokenizer = tokenizer
        self._statistics_file = statistics_file
        self._prompts = PromptEncoder(tokenizer, bos_token_id=bos_token_id, name=plan.llm.name)

    def __repr__(self) -> str:
        strategy = self.plan.strategy
        return f"LLM(model={self.plan.llm.name!r}, drafters={list(strategy.drafters)}, tree={str(strategy.tree)!r})"

    @property
    def own_engine(self) -> Engine:
        """This process's step loop, without those of other replicas.

        Raises:
            UsageError: in a process that has none, but runs a part of a model at another one's command.
        """
        return self.engine.engine if isinstance(self.engine, ReplicatedEngine) else self.engine

    def generate(
        self, prompts: Prompt | Sequence[Prompt], sampling_params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Output]:
        """Complete one prompt or many, and return a list in the order of the prompts, the `n` completions of a prompt in a row.

        Args:
            prompts: strings (taken as they are), token id lists, or chat messages (put through the chat template).
            sampling_params: for all prompts, or one each; greedy by default.

        Raises:
            UsageError: if a prompt can't be encoded or does not fit; then none has been started.
            RequestMistake: a UsageError, if a logits processor or grammar fails, or bans every token; its `outputs` are those of all
                prompts.
            GenerationInterrupted: on Ctrl-C, with what was produced until then.
        """
        each: Any = [prompts] if is_single(prompts) else prompts
        return self.engine.generate([self._prompts.encode(prompt) for prompt in each], _params(sampling_params))

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[Chunk]:
        """Complete one prompt, step by step; the last chunk carries the whole output.

        Raises:
            UsageError: as `generate`.
        """
        return self.engine.stream(self._prompts.encode(prompt), _one(sampling_params))

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Output]:
        """Answer one conversation or many, and return a list in their order, the `n` answers to one in a row.

        Raises:
            UsageError: as `generate`, and if the model has no chat template.
        """
        conversations: Any = [messages] if is_single(messages) else messages
        return self.engine.generate([self._prompts.chat(one) for one in conversations], _params(sampling_params))

    def close(self) -> None:
        """Say that nothing more will be asked; with several devices every rank has to, and waits until all do."""
        if isinstance(self.engine, ReplicatedEngine):
            self.engine.close()

    def encode(self, prompt: Prompt) -> list[int]:
        """The token ids that `generate` would feed for a prompt."""
        return self._prompts.encode(prompt)

    def explain(self) -> str:
        """The plan, memory, what the passes matched, what runs each operator, drafters, tree and row invariance.

        Once something ran, also what came of it: tokens a step, the time by phase, acceptance by depth, rank and drafter, and
        what adaptive trees go by.
        """
        statistics = self.statistics()
        if not statistics.profile.steps:
            return str(self.plan)
        alphas = {drafter.name: drafter.alpha for drafter in self.drafters if isinstance(drafter, HasAlpha)}
        return f"{self.plan}\n\n{describe_statistics(statistics, alphas)}"

    def statistics(self) -> EngineStatistics:
        """What was done so far, all requests together."""
        return self.engine.statistics()

    def save_statistics(self, path: str | os.PathLike[str] | None = None) -> None:
        """Write what was learned of the drafters' acceptance, for `flexspec.compile(…, statistics=path)` to begin with.

        Args:
            path: the file; None for the one given to `flexspec.compile`.

        Raises:
            UsageError: if the file can't be written, or none was ever given.
        """
        target = self._statistics_file if path is None else path
        if not isinstance(target, str | os.PathLike) or not os.fspath(target):
            raise UsageError(f"path={path!r} is not allowed: give the path of a file here, or as `statistics` to flexspec.compile")
        self.engine.acceptance.save(target)


def _params(params: SamplingParams | Sequence[SamplingParams] | None) -> SamplingParams | Sequence[SamplingParams]:
    if isinstance(params, Sequence) and not isinstance(params, str):
        return [_one(one) for one in params]
    return _one(params)


def _one(params: Any) -> SamplingParams:
    if params is None:
        return _DEFAULT_PARAMS
    if not isinstance(params, SamplingParams):
        raise UsageError(
            f"sampling_params={params!r} is not allowed: give flexspec.SamplingParams(…), for many prompts one for all or one each"
        )
    return params
