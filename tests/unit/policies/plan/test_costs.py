"""Read the costs of batches from profiles."""

import pytest

from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.fleet import Replica, ReplicaKind
from pentimento.policies.plan.costs import BatchCost, batch_costs
from pentimento.policies.plan.inputs import AllocationProfile, PlanInput, ReplicaView
from tests.unit.policies.plan.fleets import context

BETWEEN = BatchCost(3, pytest.approx((2.16 + 3.68) / 2))


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        pytest.param((3, 1, 64), (BatchCost(1, 1.78), BETWEEN), id="between two on the line, beyond all none"),
        pytest.param((64,), (BatchCost(1, 1.78),), id="the smallest where all are beyond"),
    ],
)
def test_batch_costs_unmeasured_sizes_lie_on_line(sizes: tuple[int, ...], found: tuple[BatchCost, ...]) -> None:
    costs = batch_costs(context(1), "sd15", sizes)

    assert costs == found
    assert [cost.throughput for cost in costs if cost.batch_size == 3] == pytest.approx([3 / 2.92] * (len(found) - 1))


def test_batch_costs_without_sizes_are_all_measured() -> None:
    assert [cost.batch_size for cost in batch_costs(context(1), "sd15")] == [1, 2, 4, 8, 16, 32]


def on(*devices: str) -> PlanInput:
    """Return workers on these devices, and costs of three devices."""
    replicas = tuple(
        ReplicaView(Replica(f"w{device}", ReplicaKind.UNET_WORKER, "", 1, device=device)) for device in devices
    )
    measured = tuple(AllocationProfile("m", device, 1, s, 0) for device, s in (("a", 1.0), ("b", 3.0), ("c", 9.0)))
    return PlanInput(0.0, replicas, (), measured)


@pytest.mark.parametrize(("devices", "seconds"), [(("a",), 1.0), (("b", "a"), 3.0), ((), 9.0)])
def test_batch_costs_slowest_present_device_counts(devices: tuple[str, ...], seconds: float) -> None:
    assert batch_costs(on(*devices), "m") == (BatchCost(1, seconds),)


def test_batch_costs_without_profile_raise() -> None:
    with pytest.raises(FailedPrecondition, match="no profile"):
        batch_costs(on("d"), "m")
