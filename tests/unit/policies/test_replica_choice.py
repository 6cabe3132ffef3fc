"""Which replica of the ControlNet service a stream is opened on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.policies.replica_choice import (
    LOAD_STREAMS,
    SAME_PICTURE_STREAMS,
    Hearing,
    ReplicaCandidate,
    ReplicaLoad,
    best_replica,
)

EDGES = "edges"


def heard(
    address: str, open_streams: int = 0, *, holds: bool = True, draining: bool = False, opening: int = 0, same: int = 0
) -> ReplicaCandidate:
    load = ReplicaLoad(8, open_streams, draining, frozenset({EDGES}) if holds else frozenset())
    return ReplicaCandidate(address, Hearing.NOW, load, opening, same)


def test_the_least_loaded_replica_that_holds_it_is_first() -> None:
    assert best_replica([heard("a", 3), heard("b", 1), heard("c", 2)], EDGES) == "b"


def test_one_that_would_have_to_load_it_is_passed_over_while_the_others_have_little_to_do() -> None:
    assert best_replica([heard("new", holds=False), heard("old", LOAD_STREAMS - 1)], EDGES) == "old"


def test_a_new_replica_gets_work_as_soon_as_the_others_have_some() -> None:
    assert best_replica([heard("old", LOAD_STREAMS + 1), heard("new", holds=False)], EDGES) == "new"


def test_streams_that_are_being_opened_count() -> None:
    assert best_replica([heard("a", opening=1), heard("b")], EDGES) == "b"
    full = ReplicaCandidate("a", Hearing.NOW, ReplicaLoad(1, 0), opening_count=1)
    assert best_replica([full, heard("b", 7, holds=False)], EDGES) == "b"


def test_controlnets_of_one_picture_go_apart_even_if_one_must_be_loaded_for_that() -> None:
    beside = heard("a", 1, same=1)
    assert SAME_PICTURE_STREAMS + 1 > LOAD_STREAMS
    assert best_replica([beside, heard("b", holds=False)], EDGES) == "b"


def test_a_draining_replica_gets_no_stream_while_there_is_any_other() -> None:
    full = ReplicaCandidate("full", Hearing.NOW, ReplicaLoad(2, 2))
    lost = ReplicaCandidate("lost", Hearing.LOST)
    assert best_replica([heard("leaving", draining=True), full], EDGES) == "full"
    assert best_replica([heard("leaving", draining=True), lost], EDGES) == "lost"
    assert best_replica([heard("leaving", draining=True)], EDGES) == "leaving"


def test_one_that_was_never_heard_of_is_tried_after_those_with_a_free_credit() -> None:
    unheard = ReplicaCandidate("unheard")
    assert best_replica([unheard, heard("busy", 7)], EDGES) == "busy"
    assert best_replica([heard("full", 8), unheard], EDGES) == "unheard"


def test_one_that_failed_the_stream_is_tried_before_those_without_a_free_credit() -> None:
    failed = ReplicaCandidate("failed", Hearing.NOW, ReplicaLoad(8, 0), failed=True)
    assert best_replica([failed, heard("busy", 7)], EDGES) == "busy"
    assert best_replica([heard("full", 8), failed], EDGES) == "failed"


def test_one_that_has_just_refused_counts_as_full_whatever_it_told() -> None:
    refused = ReplicaCandidate("refused", Hearing.NOW, ReplicaLoad(8, 0), refused=True)
    assert best_replica([refused, heard("busy", 7)], EDGES) == "busy"


def test_replicas_are_asked_by_how_likely_they_take_the_stream() -> None:
    """Whatever they cost: the last of each pair would be the cheapest."""
    order = [
        heard("free", 7, holds=False),
        ReplicaCandidate("unheard", opening_count=6),
        ReplicaCandidate("failed", Hearing.NOW, ReplicaLoad(8, 5), failed=True),
        ReplicaCandidate("full", Hearing.NOW, ReplicaLoad(4, 4)),
        ReplicaCandidate("lost", Hearing.LOST, opening_count=3),
        heard("leaving", draining=True),
    ]

    left = list(reversed(order))
    asked = []
    while left:
        asked.append(best_replica(left, EDGES))
        left = [candidate for candidate in left if candidate.address != asked[-1]]

    assert asked == [candidate.address for candidate in order]


def test_what_nobody_tells_of_a_replica() -> None:
    assert ReplicaCandidate("a") == ReplicaCandidate("a", Hearing.NEVER, ReplicaLoad(0, 0, False), 0, 0, False, False)
    assert (LOAD_STREAMS, SAME_PICTURE_STREAMS) == (1, 2)


def test_streams_on_their_way_and_controlnets_beside_count_where_nothing_is_heard_too() -> None:
    away = [ReplicaCandidate("a", opening_count=3), ReplicaCandidate("b", same_picture_count=1)]
    assert best_replica(away, EDGES) == "b"
    assert best_replica([ReplicaCandidate("a", opening_count=1), *away], EDGES) == "a"


def test_what_one_told_that_is_not_heard_from_any_more_does_not_count() -> None:
    busy = ReplicaCandidate("busy", Hearing.LOST, ReplicaLoad(8, 7))
    idle = ReplicaCandidate("idle", Hearing.LOST, ReplicaLoad(8, 0, resident=frozenset({EDGES})))

    assert best_replica([busy, idle], EDGES) == "busy"


def test_without_a_candidate_there_is_no_choice() -> None:
    with pytest.raises(ValueError, match="empty"):
        best_replica([], EDGES)


@given(st.lists(st.tuples(st.integers(0, 8), st.booleans(), st.booleans()), min_size=1, max_size=6))
def test_nobody_who_drains_or_is_full_is_chosen_while_another_is_free(replicas: list[tuple[int, bool, bool]]) -> None:
    candidates = [
        heard(str(index), streams, holds=holds, draining=draining)
        for index, (streams, holds, draining) in enumerate(replicas)
    ]
    free = {str(index) for index, (streams, _, draining) in enumerate(replicas) if streams < 8 and not draining}

    chosen = best_replica(candidates, EDGES)

    assert not free or chosen in free
