"""The allocator of paper_causes: the solver's plan, with batches that it does not know of."""

from dataclasses import replace

from benchmarks.paper_causes import BatchesApart
from benchmarks.paper_constants import CASCADES
from benchmarks.paper_systems import cascade_settings
from pentimento.policies.allocation import ModelDemand
from pentimento.policies.serving.cascades import CascadeAllocator
from tests.unit.policies.serving.fleets import context

SETTINGS = replace(cascade_settings(CASCADES[0], 8.0), light="turbo", heavy="sd15")
PLANNING = CascadeAllocator(SETTINGS)
QUIET = (ModelDemand("turbo", 8.0), ModelDemand("sd15", 4.0))


def test_pools_and_thresholds_are_the_solvers_and_batches_go_by_violations() -> None:
    asked = context(16, *QUIET)
    violated = (QUIET[0], replace(QUIET[1], violation_count=1))

    first = BatchesApart(PLANNING)(asked)
    second = BatchesApart(PLANNING)(replace(asked, last=first, now_s=5.0))
    third = BatchesApart(PLANNING)(replace(asked, demand=violated, last=second, now_s=10.0))

    assert (first.pools, first.cascades) == (PLANNING(asked).pools, PLANNING(asked).cascades)
    assert (
        third.memory[:-2]
        == PLANNING(
            replace(asked, demand=violated, last=PLANNING(replace(asked, last=PLANNING(asked), now_s=5.0)), now_s=10.0)
        ).memory
    )
    sizes = [{(one.model, one.max_batch_size) for one in decision.assignments} for decision in (first, second, third)]
    assert sizes == [
        {("turbo", 2), ("sd15", 2)},
        {("turbo", 3), ("sd15", 3)},
        {("turbo", 4), ("sd15", 1)},
    ]
