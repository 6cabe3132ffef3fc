"""The heartbeat to the controller: what happened since the one before."""

from pentimento.dataplane import Dataplane
from pentimento.dataplane.demand_report import CountedStart, DemandReport, StartCounts
from pentimento.dataplane.events import PlanReceived, RequestArrived, WorkerReported
from pentimento.domain.adapters import AdapterKind
from pentimento.domain.demand import AdapterDemand, KeptQuality, StartShare
from pentimento.domain.fleet import MAX_TOLD_COUNT, Plan, PoolPlan, Replica, ReplicaKind, ReplicaReport
from pentimento.domain.generation import PlanVersion
from pentimento.domain.thinned_steps import ThinnableSteps
from pentimento.policies.plan.demand import DemandWindow
from pentimento.policies.plan.inputs import ReplicaView
from services.controller.checks import check_report

PLAIN = ReplicaReport("f1", 7)


def at(step: int) -> CountedStart:
    return CountedStart(step)


def test_report_has_arrivals_starts_and_deferrals_once() -> None:
    dataplane, starts = Dataplane(1), StartCounts()
    report = DemandReport(dataplane, starts)
    dataplane.on_event(0.0, RequestArrived("r1", "t", "heavy", 1.0, 10.0))
    pool = dataplane.state.pool("heavy")
    pool.scored_count, pool.deferred_count = 4, 1
    for step in (0, 5, 5):
        starts.count("heavy", at(step))

    (first,) = report.added_to(PLAIN).demand
    report.answered()
    (second,) = report.added_to(PLAIN).demand

    assert (first.arrived_count, first.queue_length) == (1, 1)
    assert (first.scored_count, first.deferred_count) == (4, 1)
    assert first.starts == (StartShare(0, 1), StartShare(5, 2))
    assert (second.arrived_count, second.queue_length, second.scored_count, second.starts) == (0, 1, 0, ())


NEON = (AdapterKind.LORA, "neon")


def scored_arrival(dataplane: Dataplane, starts: StartCounts, request_id: str) -> None:
    """Return one more request, scored, that starts at step 5 with a LoRA."""
    dataplane.on_event(0.0, RequestArrived(request_id, "t", "heavy", 1.0, 10.0))
    pool = dataplane.state.pool("heavy")
    pool.scored_count += 1
    pool.confidences[19] += 1
    starts.count("heavy", at(5), ["neon"])


def test_unanswered_report_is_repeated_with_later_counts() -> None:
    dataplane, starts = Dataplane(1), StartCounts()
    report = DemandReport(dataplane, starts)
    scored_arrival(dataplane, starts, "r1")
    report.added_to(PLAIN)
    scored_arrival(dataplane, starts, "r2")

    (again,) = report.added_to(PLAIN).demand
    report.answered()
    (after,) = report.added_to(PLAIN).demand

    assert (again.arrived_count, again.scored_count, again.confidences[19]) == (2, 2, 2)
    assert (again.starts, again.adapters) == ((StartShare(5, 2),), (AdapterDemand(*NEON, 2),))
    assert (after.arrived_count, after.starts, after.adapters, after.confidences) == (0, (), (), ())


def test_counts_before_registration_are_not_reported() -> None:
    """The first report is divided by the time since then: minutes of requests would be a burst."""
    dataplane, starts = Dataplane(1), StartCounts()
    report = DemandReport(dataplane, starts)
    scored_arrival(dataplane, starts, "r1")
    report.added_to(PLAIN)
    scored_arrival(dataplane, starts, "r2")

    report.begin()

    (told,) = report.added_to(PLAIN).demand
    assert (told.arrived_count, told.scored_count, told.starts, told.adapters) == (0, 0, (), ())


def test_report_of_stand_in_stage_is_valid() -> None:
    dataplane = Dataplane(1)
    report = DemandReport(dataplane, StartCounts())
    heavy = dataplane.state.pool("heavy")
    heavy.arrived_count, heavy.stood_in_count = 5, 3

    told = report.added_to(PLAIN)

    check_report(told)
    window = DemandWindow()
    window.add(told, 1.0)
    (demand,) = window.take([ReplicaView(Replica("f1", ReplicaKind.FRONTDOOR, "unix:/f1", 7))])
    assert (demand.arrivals_per_s, demand.sent_on_per_s) == (5.0, 3.0)


def test_thinnable_steps_are_reported_once() -> None:
    dataplane = Dataplane(1)
    report = DemandReport(dataplane, StartCounts())
    heavy = dataplane.state.pool("heavy")
    heavy.from_noise_count, heavy.spare_shares, heavy.lost_shares = 4, 2.0, 0.5
    first = report.added_to(PLAIN).demand[0].thinnable
    report.answered()
    heavy.from_noise_count, heavy.spare_shares, heavy.lost_shares = 5, 2.5, 0.625

    second = report.added_to(PLAIN).demand[0].thinnable

    assert (first, second) == (ThinnableSteps(4, 2.0, 0.5), ThinnableSteps(1, 0.5, 0.125))


def test_compared_images_are_reported_until_answered() -> None:
    dataplane, starts = Dataplane(1), StartCounts()
    report = DemandReport(dataplane, starts)
    dataplane.state.pool("light")
    starts.count_compared("light", 0.99, 0.5)
    starts.count_hit("light", 0.75)

    first = report.added_to(PLAIN)
    starts.count_compared("light", 1.0, 1.0)
    (second,) = report.added_to(PLAIN).demand
    report.answered()

    check_report(first)
    assert first.demand[0].compared[19] == KeptQuality(1, 0.5, 0.25)
    assert (second.compared[19], second.hits) == (KeptQuality(2, 1.5, 1.25), KeptQuality(1, 0.75, 0.5625))
    assert report.added_to(PLAIN).demand == ()


def test_unused_start_counts_as_noise() -> None:
    starts = StartCounts()
    for step in (0, 5, 5):
        starts.count("m", at(step))

    starts.correct("m", at(5))

    assert starts.take("m") == (StartShare(0, 2), StartShare(5, 1))
    assert starts.take("m") == ()


def test_correction_after_report_reduces_later_counts() -> None:
    starts = StartCounts()
    starts.count("m", at(5))
    assert starts.take("m") == (StartShare(5, 1),)

    starts.correct("m", at(5))

    assert starts.take("m") == (StartShare(0, 1),)
    starts.count("m", at(5))
    starts.count("m", at(5))
    assert starts.take("m") == (StartShare(5, 1),)


def test_demand_is_reported_by_pool_and_model() -> None:
    dataplane, starts = Dataplane(1), StartCounts()
    report = DemandReport(dataplane, starts)
    pools = (PoolPlan("misses", "heavy", ()), PoolPlan("heavy", "heavy", ()))
    dataplane.on_event(0.0, PlanReceived(Plan(PlanVersion(1, 1), pools=pools)))
    dataplane.on_event(0.0, RequestArrived("r1", "t", "misses", 1.0, 10.0))
    dataplane.on_event(0.0, RequestArrived("r2", "t", "heavy", 1.0, 10.0))

    told = report.added_to(PLAIN).demand

    assert [(one.model, one.pool, one.arrived_count) for one in told] == [("heavy", "misses", 1), ("heavy", "", 1)]


def test_starts_are_reported_with_kind_steps_and_model_and_loras_of_a_request_together() -> None:
    starts = StartCounts()
    latent = CountedStart(10, "latent", 50, "heavy")
    starts.count("light", latent, ["neon"], ["canny", "depth"])
    starts.count("light", latent, ["neon"])
    starts.count("light", latent, ["neon", "ink", "neon"])

    starts.correct("light", latent)

    assert starts.take("light") == (StartShare(0, 1, "noise", 50), StartShare(10, 2, "latent", 50, "heavy"))
    assert starts.take_adapters("light") == (
        AdapterDemand(AdapterKind.CONTROLNET, "canny", 1),
        AdapterDemand(AdapterKind.CONTROLNET, "depth", 1),
        AdapterDemand(AdapterKind.LORA, "ink", 1, ("neon",)),
        AdapterDemand(AdapterKind.LORA, "neon", 2),
    )
    assert starts.take_adapters("light") == ()


def test_excess_starts_and_adapters_follow_in_next_report() -> None:
    """Clients choose their steps, and a controller that was away receives all earlier counts at once."""
    dataplane, starts = Dataplane(1), StartCounts()
    report, kept, asked = DemandReport(dataplane, starts), [], []
    dataplane.on_event(0.0, RequestArrived("r1", "t", "heavy", 1.0, 10.0))
    for number in range(MAX_TOLD_COUNT + 10):
        for _ in range(2 if number == MAX_TOLD_COUNT else 1):
            starts.count("heavy", CountedStart(0, "noise", number + 1), [f"style-{number}"])

    for _ in range(2):
        told = report.added_to(PLAIN)
        check_report(told)
        report.answered()
        kept += [one.starts for one in told.demand]
        asked += [one.adapters for one in told.demand]

    assert [len(one) for one in kept] == [MAX_TOLD_COUNT, 10]
    assert {one.step_count for told in kept for one in told} == set(range(1, MAX_TOLD_COUNT + 11))
    assert [len(one) for one in asked] == [MAX_TOLD_COUNT, 10]
    assert AdapterDemand(AdapterKind.LORA, f"style-{MAX_TOLD_COUNT}", 2) in asked[0]


def test_confidences_are_reported_once_by_twentieths() -> None:
    dataplane = Dataplane(1)
    report = DemandReport(dataplane, StartCounts())
    pool = dataplane.state.pool("light")
    pool.scored_count, pool.confidences[19] = 2, 2
    first = report.added_to(PLAIN).demand[0].confidences
    report.answered()
    pool.scored_count, pool.confidences[0] = 3, 1

    second = report.added_to(PLAIN).demand[0].confidences

    assert (first[19], sum(first)) == (2, 2)
    assert (second[0], sum(second)) == (1, 1)


def test_idle_pools_without_worker_are_not_reported() -> None:
    """A frontdoor counts every model that ever ran: a controller rejects a report of too many."""
    dataplane = Dataplane(1)
    report = DemandReport(dataplane, StartCounts())
    for number in range(2 * MAX_TOLD_COUNT):
        dataplane.state.pool(f"model-{number}")
    dataplane.on_event(0.0, WorkerReported("w", "held", "d", 1, 1))
    dataplane.on_event(0.0, RequestArrived("r1", "t", "model-7", 1.0, 10.0))

    told = report.added_to(PLAIN)

    check_report(told)
    assert [one.model for one in told.demand] == ["model-7", "held"]


def test_report_has_a_pool_for_each_possible_model() -> None:
    dataplane = Dataplane(1)
    for number in range(MAX_TOLD_COUNT):
        dataplane.on_event(0.0, RequestArrived(f"r{number}", "t", f"model-{number}", 1.0, 10.0))

    told = DemandReport(dataplane, StartCounts()).added_to(PLAIN)

    check_report(told)
    assert len(told.demand) == MAX_TOLD_COUNT
