"""How much the report measures."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Workloads and repetitions.

    Attributes:
        devices: ranks, one thread each.
        batches: requests at once, one workload each.
        trees: drafted tokens of a request and step, chains of so many; 0 is plain decoding.
        acceptance: chance that a drafted token is right, if the one before it is.
        prompt_tokens: of a request.
        steps: of each request that are timed in a round.
        rounds: every strategy is timed once in each.
    """

    devices: int = 2
    batches: tuple[int, ...] = (1, 2, 4)
    trees: tuple[int, ...] = (0, 4, 8, 16)
    acceptance: float = 0.8
    prompt_tokens: int = 192
    steps: int = 6
    rounds: int = 3

    @property
    def new_tokens(self) -> int:
        """What a request emits meanwhile, about; the prediction is for the middle of it."""
        return self.steps * 4


FULL = Sizes()
QUICK = Sizes(batches=(2,), trees=(0, 4), prompt_tokens=32, steps=3, rounds=2)
