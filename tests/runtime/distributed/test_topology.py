"""Every rank of a plan has one place, and every place one rank."""

from itertools import product

import pytest

from flexspec.parallel import BESIDE, OWN_DEVICE, ParallelPlan
from flexspec.runtime.distributed.topology import Place, Topology

PLACEMENTS = [{}, {"a": BESIDE}, {"a": OWN_DEVICE, "b": BESIDE, "c": OWN_DEVICE}]


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_every_rank_has_a_place_of_its_own(placement):
    for dp, pp, tp in product((1, 2, 3), repeat=3):
        plan = ParallelPlan(dp=dp, pp=pp, tp=tp, placement=placement)
        topology = Topology(plan)
        places = [topology.place(rank) for rank in range(plan.world_size)]
        own = [name for name, where in placement.items() if where == OWN_DEVICE]
        wanted = {Place(replica=r, stage=s, part=p) for r, s, p in product(range(dp), range(pp), range(tp))}
        wanted |= {Place(replica=r, stage=None, part=0, drafter=name) for r in range(dp) for name in own}
        assert len(places) == len(wanted) and set(places) == wanted
        for replica, stage in product(range(dp), range(pp)):
            ranks = topology.stage(replica, stage)
            assert [places[rank] for rank in ranks] == [Place(replica=replica, stage=stage, part=part) for part in range(tp)]
        for replica in range(dp):
            driver = topology.driver(replica)
            assert places[driver] == Place(replica=replica, stage=pp - 1, part=0)
            assert sorted([driver, *topology.workers(replica)]) == [rank for rank, place in enumerate(places) if place.replica == replica]
            assert [places[rank].drafter for rank in topology.workers(replica)[pp * tp - 1 :]] == own
            assert set(topology.model_workers(replica)) == {rank for rank in topology.workers(replica) if places[rank].stage is not None}
            assert [places[topology.drafter(replica, name)].drafter for name in own] == own
        assert topology.drivers == [topology.driver(replica) for replica in range(dp)]
