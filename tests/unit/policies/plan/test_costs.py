"""Collect costs of models, and read those of batches."""

from dataclasses import replace

import pytest

from pentimento.domain.components import GB, StoredBytes, Tier, TierSpeed
from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.fleet import ModelCost, Replica, ReplicaKind, ReplicaReport
from pentimento.domain.models import DeviceCost
from pentimento.policies.plan.costs import BatchCost, LoadSeconds, batch_costs, reported_profiles, with_registered
from pentimento.policies.plan.inputs import AllocationProfile, PlanInput, ReplicaView
from tests.unit.policies.plan.fleets import context, worker

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


def test_reported_profiles_slower_report_counts() -> None:
    def costing(name: str, *costs: ModelCost) -> ReplicaView:
        return ReplicaView(replace(worker(0).replica, instance_id=name, device="gpu", costs=costs))

    slow, fast = ModelCost("m", ((1, 2.0), (2, 2.5)), 7, 3.0), ModelCost("m", ((1, 1.0),), 7, 3.0)

    found = reported_profiles((costing("w1", slow), costing("w2", fast, ModelCost("n", ((1, 9.0),)))))

    assert [(profile.model, profile.batch_size, profile.latency_s) for profile in found] == [
        ("m", 1, 2.0),
        ("m", 2, 2.5),
        ("n", 1, 9.0),
    ]
    assert (found[0].device, found[0].memory_bytes, found[0].load_s) == ("gpu", 7, 3.0)


def test_reported_profiles_estimate_gives_way_to_profile() -> None:
    estimate, cost = ModelCost("m", ((1, 9.0),), estimated=True), ModelCost("m", ((1, 2.0),))
    replicas = tuple(
        ReplicaView(replace(worker(number).replica, device=device, costs=(one,)))
        for number, (device, one) in enumerate((("gpu", estimate), ("gpu", cost), ("cpu", estimate)))
    )

    found = reported_profiles(replicas)

    assert [(one.device, one.latency_s, one.estimated) for one in found] == [("cpu", 9.0, True), ("gpu", 2.0, False)]
    assert [one.latency_s for one in with_registered(found, (DeviceCost("cpu", cost),))] == [2.0, 2.0]
    assert with_registered(found, (DeviceCost("", ModelCost("n", ((1, 1.0),))),))[:2] == found


# Seconds of an image by each worker, and whether it finishes requests of the model now.
@pytest.mark.parametrize(
    ("workers", "seconds"),
    [
        pytest.param([(1.0, False), (4.0, False), (9.0, False)], 4.0, id="all-idle"),
        pytest.param([(1.0, True), (4.0, False), (9.0, False)], 1.0, id="one-works"),
        pytest.param([(1.0, False), (4.0, True), (9.0, True)], 6.5, id="two-work"),
    ],
)
def test_reported_profiles_combine_estimates_of_working_replicas(
    workers: list[tuple[float, bool]], seconds: float
) -> None:
    replicas = tuple(
        replace(view, replica=replace(view.replica, costs=(cost,)), works=works)
        for number, (run_s, works) in enumerate(workers)
        for view, cost in [(worker(number, "m"), ModelCost("m", ((1, run_s),), estimated=True))]
    )
    (found,) = reported_profiles(replicas)
    moved = tuple(replace(view, replica=replace(view.replica, resident_models=("n",))) for view in replicas)

    assert found.latency_s == seconds
    # What they finish is of the model that they hold.
    assert [one.latency_s for one in reported_profiles(moved)] == [4.0]


def test_with_registered_adds_unreported_costs() -> None:
    reported = (AllocationProfile("m", "gpu", 1, 1.0, 7),)
    cost, other = ModelCost("m", ((1, 5.0), (2, 6.0)), 9, 3.0), ModelCost("n", ((1, 8.0),), 4)
    registered = (DeviceCost("gpu", cost), DeviceCost("cpu", cost), DeviceCost("", cost), DeviceCost("", other))

    found = with_registered(reported, registered)

    assert found == (
        *reported,
        AllocationProfile("m", "cpu", 1, 5.0, 9, 3.0),
        AllocationProfile("m", "cpu", 2, 6.0, 9, 3.0),
        AllocationProfile("n", "", 1, 8.0, 4),
    )


DISK, STORE = Tier.DISK, Tier.STORE
LOADS: dict[str, tuple[dict[Tier, int], dict[Tier, float], float]] = {
    "its own speed": ({DISK: 2}, {DISK: 1.5}, 3.0),
    "of each tier": ({DISK: 1, STORE: 2}, {DISK: 1.5, STORE: 10.0}, 21.5),
    "the others' mean speed of the store": ({DISK: 1, STORE: 2}, {DISK: 1.5}, 11.5),
    "the others' mean speed of each tier": ({DISK: 2}, {}, 4.0),
    "its last load if no worker measured the tier": ({Tier.HOST: 1}, {DISK: 1.5}, 7.0),
    "its last load if its bytes are unknown": ({}, {DISK: 1.5}, 7.0),
}


@pytest.mark.parametrize("name", LOADS)
def test_load_seconds_are_by_worker_and_tier(name: str) -> None:
    """Another worker takes 2 s a gigabyte from the disk and 4 from the store, a third one 6 from the store."""
    sizes, speeds, seconds = LOADS[name]

    def view(instance_id: str, sizes: dict[Tier, int], speeds: dict[Tier, float]) -> ReplicaView:
        stored = tuple(StoredBytes("m", tier, size * GB) for tier, size in sizes.items())
        costs = (ModelCost("m", ((1, 1.0),), load_s=7.0),)
        replica = Replica(
            instance_id, ReplicaKind.UNET_WORKER, "", 1, available_models=("m",), stored=stored, costs=costs
        )
        measured = tuple(TierSpeed(tier, one) for tier, one in speeds.items())
        return ReplicaView(replica, ReplicaReport(instance_id, 1, load_speeds=measured))

    others = (view("w1", {}, {DISK: 2.0, STORE: 4.0}), view("w2", {}, {STORE: 6.0}))
    asked = PlanInput(0.0, (view("w0", sizes, speeds), *others), (), (AllocationProfile("m", "", 1, 1.0, 0, 9.0),))

    assert LoadSeconds(asked).of(asked.workers()[0], "m") == pytest.approx(seconds)


def test_load_seconds_without_measurement_are_the_profiles() -> None:
    asked = replace(on("a", "b"), profiles=(AllocationProfile("m", "a", 1, 1.0, 0, 9.0),))

    assert [LoadSeconds(asked).of(worker, "m") for worker in asked.workers()] == [9.0, 0.0]
