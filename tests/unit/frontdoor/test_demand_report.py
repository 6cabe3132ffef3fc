"""The heartbeat to the controller: what happened since the one before."""

from pentimento.dataplane import Dataplane
from pentimento.dataplane.events import RequestArrived
from pentimento.domain.fleet import ReplicaReport, StartShare
from services.frontdoor.status import DemandReport, StartCounts

PLAIN = ReplicaReport("f1", 7)


def test_arrivals_starts_and_deferrals_are_told_once() -> None:
    dataplane, starts = Dataplane(1), StartCounts()
    report = DemandReport(dataplane, starts)
    dataplane.on_event(0.0, RequestArrived("r1", "t", "heavy", 1.0, 10.0))
    pool = dataplane.state.pool("heavy")
    pool.scored_count, pool.deferred_count = 4, 1
    for step in (0, 5, 5):
        starts.count("heavy", step)

    (first,), (second,) = report.added_to(PLAIN).demand, report.added_to(PLAIN).demand

    assert (first.arrived_count, first.queue_length) == (1, 1)
    assert (first.deferred_share, first.scored_count) == (0.25, 4)
    assert first.starts == (StartShare(0, 1), StartShare(5, 2))
    assert (second.arrived_count, second.queue_length, second.scored_count, second.starts) == (0, 1, 0, ())


def test_a_start_that_could_not_be_used_counts_as_one_from_noise() -> None:
    starts = StartCounts()
    for step in (0, 5, 5):
        starts.count("m", step)

    starts.correct("m", 5)

    assert starts.take("m") == (StartShare(0, 2), StartShare(5, 1))
    assert starts.take("m") == ()


def test_what_is_corrected_after_it_was_told_is_taken_off_later_ones() -> None:
    starts = StartCounts()
    starts.count("m", 5)
    assert starts.take("m") == (StartShare(5, 1),)

    starts.correct("m", 5)

    assert starts.take("m") == (StartShare(0, 1),)
    starts.count("m", 5)
    starts.count("m", 5)
    assert starts.take("m") == (StartShare(5, 1),)
