"""Keep a bounded history for the console's charts: in order, as JSON for a page."""

import json
import time
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pentimento.api.frontdoor.v1.frontdoor_service_pb2 import GetStatusResponse, LatencyBucket, PoolStatus, StartCount
from pentimento.clients.suite_status import SuiteStatus
from pentimento.domain.fleet import CascadePlan, Fleet, Plan, StagePlan, StartThreshold, WorkerAssignment
from pentimento.domain.generation import PlanVersion
from services.edge.console.history import SampleRing, sample_of

FRONTDOOR = GetStatusResponse(
    frontdoor_id="frontdoor",
    frontdoor_epoch=3,
    accepted_count=9,
    completed_count=7,
    failed_count=1,
    rejected_count=2,
    steps_run=150,
    steps_saved=50,
    pools=[PoolStatus(late_count=1, scored_count=4, deferred_count=2), PoolStatus(late_count=2, scored_count=1)],
    starts=[StartCount(kind="latent", saved_steps=15, image_count=3)],
    latencies=[LatencyBucket(upper_bound_s=0.5, request_count=7), LatencyBucket(upper_bound_s=float("inf"))],
)


def test_sample_has_values_of_every_chart() -> None:
    thresholds = (StartThreshold("noise", 0.5), StartThreshold("latent", 0.75))
    plan = Plan(
        PlanVersion(1, 1),
        tuple(
            WorkerAssignment(name, name, model, 1) for name, model in (("a", "light"), ("b", "light"), ("c", "heavy"))
        ),
        admission_rate=0.8,
        cascades=(CascadePlan("light>heavy", (StagePlan("light", thresholds, "light>heavy"), StagePlan("heavy"))),),
    )

    sample = sample_of(SuiteStatus(Fleet((), plan, 1, slo_s=5.0), FRONTDOOR, None, {}))

    assert sample is not None
    assert abs(sample.pop("at") - time.time() * 1000) < 60_000
    assert sample == {
        "epoch": "frontdoor 3",
        "accepted": 9,
        "completed": 7,
        "failed": 1,
        "rejected": 2,
        "late": 3,
        "scored": 5,
        "deferred": 2,
        "run": 150,
        "saved": 50,
        "starts": [["latent", 15, 3]],
        "latencies": [[0.5, 7], ["Infinity", 0]],
        "workers": {"light": 2, "heavy": 1},
        "thresholds": {"light>heavy": 0.75},
        "admission": 0.8,
        "slo_s": 5.0,
    }


def test_sample_needs_frontdoor_and_admits_all_without_controller() -> None:
    alone = sample_of(SuiteStatus(None, FRONTDOOR, None, {}))

    assert alone is not None
    assert (alone["workers"], alone["thresholds"], alone["admission"], alone["slo_s"]) == ({}, {}, 1.0, 0.0)
    assert sample_of(SuiteStatus(None, None, None, {"frontdoor": "away"})) is None


def kept(ring: SampleRing, after_ms: int = 0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(ring.after(after_ms))
    return found


def test_page_gets_missing_samples() -> None:
    ring = SampleRing(3)
    for at_ms in (10, 20, 30, 40):
        ring.add({"at": at_ms, "completed": at_ms})

    assert [sample["at"] for sample in kept(ring)] == [20, 30, 40]
    assert kept(ring, 30) == [{"at": 40, "completed": 40}]
    assert kept(ring, 40) == []


def test_a_clock_that_goes_back_hides_no_sample_and_changes_no_distance() -> None:
    elapsed_s = iter((50.0, 55.0, 60.0, 60.0))
    ring = SampleRing(4, elapsed_s=lambda: next(elapsed_s))
    for at_ms in (1_000_000, 400_000, 405_000, 405_000):
        ring.add({"at": at_ms})

    assert [sample["at"] for sample in kept(ring, 1_000_000)] == [1_005_000, 1_010_000, 1_010_001]


def test_a_page_that_has_seen_later_times_than_this_process_gets_all() -> None:
    ring = SampleRing(3)
    for at_ms in (1_000_000, 1_005_000):
        ring.add({"at": at_ms})

    assert [sample["at"] for sample in kept(ring, 4_600_000)] == [1_000_000, 1_005_000]
    # Another process, with a clock a little ahead, answers the same page.
    assert kept(ring, 1_006_000) == []


@given(
    sizes=st.lists(st.integers(0, 400), max_size=40),
    max_samples=st.integers(1, 10),
    max_bytes=st.integers(1, 2000),
)
def test_memory_is_bounded_by_number_and_by_bytes(sizes: list[int], max_samples: int, max_bytes: int) -> None:
    ring = SampleRing(max_samples, max_bytes, elapsed_s=lambda: 0.0)
    for at_ms, size in enumerate(sizes, start=1):
        ring.add({"at": at_ms, "models": "m" * size})
        found = kept(ring)

        assert len(ring) == len(found) <= max_samples
        assert ring.size_bytes == sum(len(json.dumps(one, separators=(",", ":"))) for one in found) <= max_bytes
        # The newest are kept, none is left out between them.
        assert [one["at"] for one in found] == list(range(at_ms - len(found) + 1, at_ms + 1))
