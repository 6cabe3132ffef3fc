"""Times of index rebuilds, and waits after a failed build."""

from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.errors import InvalidArgument
from pentimento.stores.vectors.index_building import (
    IndexBuilding,
    IndexCounts,
    build_is_due,
    needed_room_bytes,
    retry_delay_s,
)
from tests.support.refusals import raises

BUILDING = IndexBuilding(least_points_count=1000, unindexed_share=0.1, most_unindexed_count=500)


DUE: list[tuple[int, int, bool]] = [
    (999, 999, False),  # small: compared vector by vector
    (200, 1000, True),  # small, but as many deleted vectors are kept
    (0, 1000, True),
    (1000, 1000, True),
    (1000, 99, False),
    (1000, 100, True),
    (4000, 399, False),
    (4000, 400, True),
    (100_000, 499, False),
    (100_000, 500, True),  # a twentieth of the share, but more than may be compared
    (1000, 0, False),
]


def test_build_is_due_by_share_and_number() -> None:
    assert [row for row in DUE if build_is_due(IndexCounts(*row[:2]), BUILDING) is not row[2]] == []


@given(points=st.integers(0, 10**7), changed=st.integers(0, 10**7), more=st.integers(0, 10**6))
def test_build_is_never_less_due_by_changes(points: int, changed: int, more: int) -> None:
    before = build_is_due(IndexCounts(points, changed), BUILDING)

    assert build_is_due(IndexCounts(points, changed + more), BUILDING) >= before


def test_retry_delay_doubles_up_to_limit() -> None:
    building = IndexBuilding(first_retry_s=60, max_retry_s=400)

    assert [retry_delay_s(count, building) for count in (0, 1, 2, 3, 4, 10_000)] == [0, 60, 120, 240, 400, 400]


def test_needed_room_is_vectors_twice_and_graph() -> None:
    vectors_bytes = 1000 * 2 * 512 * 4

    assert needed_room_bytes(1000, 512) == 2.5 * vectors_bytes
    assert needed_room_bytes(1000, 384, 512) == 2.5 * 1000 * (384 + 512) * 4


WRONG: list[dict[str, float]] = [
    {"unindexed_share": 0.0},
    {"unindexed_share": 1.1},
    {"unindexed_share": float("nan")},
    {"least_points_count": 0},
    {"most_unindexed_count": 0},
    {"threads_count": 0},
    {"search_candidates_count": 0},
    {"edges_count": 3},
    {"edges_count": 64, "candidates_count": 63},
]


def test_index_building_refuses_wrong_numbers() -> None:
    assert [wrong for wrong in WRONG if not raises(InvalidArgument, IndexBuilding, **wrong)] == []
