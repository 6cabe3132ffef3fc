"""How many calls are let in, of everybody and of one."""

import pytest

from pentimento.domain.errors import ResourceExhausted
from pentimento.rpc.seats import Seats


def refused(seats: Seats, key: str) -> str:
    with pytest.raises(ResourceExhausted) as caught:
        seats.take(key)
    return caught.value.message


def test_there_are_as_many_as_the_limit_and_as_one_may_have() -> None:
    seats = Seats(limit=3, share=2)
    for key in ("a", "a", "b"):
        seats.take(key)

    assert "max_concurrent_calls = 3" in refused(seats, "b")
    assert "max_concurrent_calls = 3" in refused(seats, "a")


def test_one_key_has_no_more_than_its_share_and_the_refused_take_nothing() -> None:
    seats = Seats(limit=4, share=2)
    for key in ("a", "a"):
        seats.take(key)

    assert "already serves 2 calls of this tenant or peer" in refused(seats, "a")
    for key in ("b", "b"):
        seats.take(key)
    assert "max_concurrent_calls = 4" in refused(seats, "c")


def test_a_seat_that_is_left_can_be_taken_by_anybody_again() -> None:
    seats = Seats(limit=2, share=2)
    for _ in range(3):
        seats.take("a")
        seats.take("a")
        seats.leave("a")
        seats.take("b")
        seats.leave("b")
        seats.leave("a")

    seats.take("a")
    seats.take("b")

    assert "max_concurrent_calls = 2" in refused(seats, "a")


def test_who_has_no_seat_any_more_is_forgotten_and_who_has_one_is_not() -> None:
    seats = Seats(limit=9, share=2)
    for key in ("stays", "stays", *(f"peer {number}" for number in range(5))):
        seats.take(key)

    for key in ("stays", *(f"peer {number}" for number in range(5))):
        seats.leave(key)

    assert dict(seats._by_key) == {"stays": 1}


def test_a_share_is_had_again_by_who_left_its_seats() -> None:
    seats = Seats(limit=9, share=2)
    seats.take("a")
    seats.take("a")
    seats.leave("a")
    seats.take("a")

    assert "already serves 2" in refused(seats, "a")
