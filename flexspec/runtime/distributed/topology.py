"""Which rank does what.

The ranks of a replica follow each other. The first of them is its *driver*: it has the last stage's first part of the model, so the
logits, and with them all decisions, are where the requests are. Behind the last stage's ranks come those of the stage before it,
and so on up to the first stage; then one rank for each drafter that has a device of its own.
"""

from dataclasses import dataclass

from flexspec.parallel import OWN_DEVICE, ParallelPlan


@dataclass(frozen=True, kw_only=True)
class Place:
    """A rank's part of the work.

    Attributes:
        replica: number of the replica.
        stage: pipeline stage, counted from the one that has the embedding; None for the rank of a drafter.
        part: place in the stage's tensor-parallel group; 0 for a drafter.
        drafter: the drafter that the rank is for; None for the model's ranks.
    """

    replica: int
    stage: int | None
    part: int
    drafter: str | None = None


@dataclass(frozen=True)
class Topology:
    """The ranks of a plan."""

    plan: ParallelPlan

    @property
    def own_devices(self) -> tuple[str, ...]:
        """The drafters that have a device of their own, in the order of their ranks."""
        return tuple(name for name, where in self.plan.placement.items() if where == OWN_DEVICE)

    @property
    def drivers(self) -> list[int]:
        """The first rank of each replica."""
        return [replica * self.plan.replica_size for replica in range(self.plan.dp)]

    def place(self, rank: int) -> Place:
        """What a rank does."""
        replica, index = divmod(rank, self.plan.replica_size)
        behind = index - self.plan.pp * self.plan.tp
        if behind >= 0:
            return Place(replica=replica, stage=None, part=0, drafter=self.own_devices[behind])
        from_last, part = divmod(index, self.plan.tp)
        return Place(replica=replica, stage=self.plan.pp - 1 - from_last, part=part)

    def driver(self, replica: int) -> int:
        """The rank that drives a replica."""
        return self.drivers[replica]

    def stage(self, replica: int, stage: int) -> list[int]:
        """The ranks of a stage, its tensor-parallel group."""
        first = self.driver(replica) + (self.plan.pp - 1 - stage) * self.plan.tp
        return list(range(first, first + self.plan.tp))

    def drafter(self, replica: int, name: str) -> int:
        """The rank of a drafter that has a device of its own."""
        return self.driver(replica) + self.plan.pp * self.plan.tp + self.own_devices.index(name)

    def model_workers(self, replica: int) -> list[int]:
        """The ranks that run the model at the driver's command: all that have a part of it but the driver."""
        first = self.driver(replica)
        return list(range(first + 1, first + self.plan.pp * self.plan.tp))

    def workers(self, replica: int) -> list[int]:
        """All ranks of a replica but its driver."""
        first = self.driver(replica)
        return list(range(first + 1, first + self.plan.replica_size))
