"""What the search predicts of the strategies that are measured: one for each form of plan and tree size."""

from collections.abc import Sequence
from dataclasses import dataclass

from flexspec.calibration.report.known_acceptance import known_acceptance
from flexspec.calibration.report.sizes import Sizes
from flexspec.passes.search.case import Case, Solved
from flexspec.passes.search.cost import CostModel
from flexspec.passes.search.drafter_record import DrafterRecord
from flexspec.passes.search.hardware import Hardware
from flexspec.passes.search.records import ModelRecord
from flexspec.passes.search.result import Candidate
from flexspec.passes.search.run import candidate_of
from flexspec.passes.search.space import Workload
from flexspec.runtime.drafters.synthetic import SYNTHETIC


@dataclass(frozen=True, order=True)
class Form:
    """What strategies are told apart by here."""

    dp: int
    pp: int
    tp: int
    tree: int
    micro_batches: int = 1

    def __str__(self) -> str:
        degrees = [f"{name} {value}" for name, value in (("DP", self.dp), ("PP", self.pp), ("TP", self.tp)) if value > 1]
        in_flight = f", {self.micro_batches} in flight" if self.micro_batches > 1 else ""
        return f"{' x '.join(degrees) or '1 rank'}{in_flight}, n = {self.tree}"


def workload(sizes: Sizes, batch: int, dtype: str) -> Workload:
    """What is run."""
    return Workload(batch=batch, context=sizes.prompt_tokens, new_tokens=sizes.new_tokens, max_tree=max(sizes.trees), dtype=dtype)


def priced(model: ModelRecord, hardware: Hardware, sizes: Sizes, batch: int, dtype: str) -> dict[Form, Candidate]:
    """Of every form the strategy that the search would take, with its prediction, by the search's own equations.

    Tensor parallelism in which every device does everything, which the search has as well, is no form of its own.
    """
    acceptance = known_acceptance(SYNTHETIC, [sizes.acceptance])
    costs = CostModel(model, [DrafterRecord(name=SYNTHETIC)], hardware, workload(sizes, batch, dtype), acceptance)
    found: dict[Form, Solved] = {}
    for case in costs.cases():
        for member in [case] if case.members is None else case.members[1]():
            if member.shape.tp > 1 and not all(way.is_divided for way in member.division.blocks.values()):
                continue
            for solved in _cuts(member, sizes.trees):
                shape = solved.case.shape
                form = Form(shape.dp, shape.pp, shape.tp, solved.grown.size, shape.micro_batches)
                if form not in found or solved.seconds_per_token < found[form].seconds_per_token:
                    found[form] = solved
    return {form: candidate_of(costs, found[form]) for form in sorted(found)}


def _cuts(case: Case, trees: Sequence[int]) -> list[Solved]:
    sizes = case.drafting.sizes.tolist()
    found = [case.cut(place) for place, size in enumerate(sizes) if size in trees]
    return [one for one in found if one is not None]
