"""Choose the replica of the ControlNet service for a stream."""

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


def unheard_with_same_image(address: str) -> ReplicaCandidate:
    """Return a candidate without a report, with another ControlNet of the same image."""
    return ReplicaCandidate(address, same_picture_count=1)


FULL = ReplicaCandidate("full", Hearing.NOW, ReplicaLoad(2, 2))
LOST, UNHEARD = ReplicaCandidate("lost", Hearing.LOST), ReplicaCandidate("unheard")
FAILED = ReplicaCandidate("failed", Hearing.NOW, ReplicaLoad(8, 0), failed=True)
REFUSED = ReplicaCandidate("refused", Hearing.NOW, ReplicaLoad(8, 0), refused=True)
LAST_CREDIT_TAKEN = ReplicaCandidate("a", Hearing.NOW, ReplicaLoad(1, 0), opening_count=1)
CHOICES = {
    "least loaded": ([heard("a", 3), heard("b", 1), heard("c", 2)], "b"),
    "loaded elsewhere, little to do": ([heard("new", holds=False), heard("old", LOAD_STREAMS - 1)], "old"),
    "loaded elsewhere, some work": ([heard("old", LOAD_STREAMS + 1), heard("new", holds=False)], "new"),
    "streams that open count": ([heard("a", opening=1), heard("b")], "b"),
    "streams that open take credits": ([LAST_CREDIT_TAKEN, heard("b", 7, holds=False)], "b"),
    "ControlNets of one image go apart": ([heard("a", 1, same=1), heard("b", holds=False)], "b"),
    "draining after full": ([heard("leaving", draining=True), FULL], "full"),
    "draining after lost": ([heard("leaving", draining=True), LOST], "lost"),
    "draining alone": ([heard("leaving", draining=True)], "leaving"),
    "unheard after free": ([UNHEARD, heard("busy", 7)], "busy"),
    "unheard before full": ([heard("full", 8), UNHEARD], "unheard"),
    "failed after free": ([FAILED, heard("busy", 7)], "busy"),
    "failed before full": ([heard("full", 8), FAILED], "failed"),
    "refused counts as full": ([REFUSED, heard("busy", 7)], "busy"),
    "unheard with streams that open": ([ReplicaCandidate("a", opening_count=3), unheard_with_same_image("b")], "b"),
    "unheard beside another": (
        [ReplicaCandidate("a", opening_count=1), ReplicaCandidate("c", opening_count=3), unheard_with_same_image("b")],
        "a",
    ),
    "load of a lost one does not count": (
        [
            ReplicaCandidate("busy", Hearing.LOST, ReplicaLoad(8, 7)),
            ReplicaCandidate("idle", Hearing.LOST, ReplicaLoad(8, 0, resident=frozenset({EDGES}))),
        ],
        "busy",
    ),
}


def test_best_replica_of_candidates() -> None:
    chosen = {name: best_replica(candidates, EDGES) for name, (candidates, _) in CHOICES.items()}

    assert chosen == {name: expected for name, (_, expected) in CHOICES.items()}
    assert SAME_PICTURE_STREAMS + 1 > LOAD_STREAMS


def test_best_replica_order_is_by_likelihood_to_accept() -> None:
    """Costs do not count: the last of each pair would be the cheapest."""
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


def test_best_replica_without_candidates_is_an_error() -> None:
    with pytest.raises(ValueError, match="empty"):
        best_replica([], EDGES)


@given(st.lists(st.tuples(st.integers(0, 8), st.booleans(), st.booleans()), min_size=1, max_size=6))
def test_best_replica_is_free_if_any_is(replicas: list[tuple[int, bool, bool]]) -> None:
    candidates = [
        heard(str(index), streams, holds=holds, draining=draining)
        for index, (streams, holds, draining) in enumerate(replicas)
    ]
    free = {str(index) for index, (streams, _, draining) in enumerate(replicas) if streams < 8 and not draining}

    chosen = best_replica(candidates, EDGES)

    assert not free or chosen in free
