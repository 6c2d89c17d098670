"""What a tuning tells at its end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flexspec.tuning.evaluation import HitRates
from flexspec.tuning.trainer import Trained


@dataclass(frozen=True, kw_only=True)
class MemberReport:
    """One draft model.

    Attributes:
        folder: where it is.
        parameters: that were trained.
        trained: what came of it.
    """

    folder: str
    parameters: int
    trained: Trained

    def to_json(self) -> dict[str, Any]:
        """As the report file has it."""
        trained = self.trained
        return {
            "folder": self.folder,
            "parameters": self.parameters,
            "steps": trained.steps,
            "tokens": trained.tokens,
            "held_out": {"hit_rates_by_depth": trained.rates.by_depth, "counts": trained.rates.counts},
            "curve": trained.curve,
        }

    @staticmethod
    def from_json(content: dict[str, Any]) -> "MemberReport":
        """What `to_json` gave."""
        held_out = content["held_out"]
        trained = Trained(
            steps=content["steps"],
            tokens=content["tokens"],
            curve=content["curve"],
            rates=HitRates(by_depth=held_out["hit_rates_by_depth"], counts=held_out["counts"]),
        )
        return MemberReport(folder=content["folder"], parameters=content["parameters"], trained=trained)


@dataclass(frozen=True, kw_only=True)
class TuneReport:
    """All of it.

    Attributes:
        settings: what was asked for.
        texts: how many there are, those held out included.
        held_out: how many were held out.
        answer_tokens: of all texts.
        draft_vocabulary: tokens that can be drafted, and the share of the held-out answers that they make up.
        members: of the pool, in their order.
        coverage: [members][k - 1] share of held-out tokens that one of the first 1, 2, … members has among its first k.
    """

    settings: dict[str, Any]
    texts: int
    held_out: int
    answer_tokens: int
    draft_vocabulary: tuple[int, float]
    members: Sequence[MemberReport]
    coverage: list[list[float]]

    def to_json(self) -> dict[str, Any]:
        """As the report file has it."""
        size, share = self.draft_vocabulary
        return {
            "settings": self.settings,
            "texts": self.texts,
            "held_out": self.held_out,
            "answer_tokens": self.answer_tokens,
            "draft_vocabulary": {"size": size, "share_of_held_out": share},
            "members": [member.to_json() for member in self.members],
            "joint_coverage": self.coverage,
        }

    @staticmethod
    def from_json(content: dict[str, Any]) -> "TuneReport":
        """What `to_json` gave."""
        vocabulary = content["draft_vocabulary"]
        return TuneReport(
            settings=content["settings"],
            texts=content["texts"],
            held_out=content["held_out"],
            answer_tokens=content["answer_tokens"],
            draft_vocabulary=(vocabulary["size"], vocabulary["share_of_held_out"]),
            members=[MemberReport.from_json(member) for member in content["members"]],
            coverage=content["joint_coverage"],
        )
