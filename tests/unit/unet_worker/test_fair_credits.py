"""Test the frontdoors that a worker waits for, and the credits that it offers."""

import asyncio
from collections import Counter

from lab.simulator.agenda import Agenda
from services.unet_worker.attempts.frontdoors import UNUSED_S, FairCredits


async def test_fair_credits_of_one_frontdoor_are_all() -> None:
    fair = FairCredits(lambda: None)
    with fair.watching("a"):
        fair.admit("a", 1.0)
        assert [fair.offered("a", 4, {"a": count}) for count in range(6)] == [4] * 6
        assert not fair.has_rivals("a")


async def test_fair_credits_of_two_frontdoors_with_requests_are_halves() -> None:
    fair, held = FairCredits(lambda: None), Counter({"a": 4})
    with fair.watching("a"), fair.watching("b"):
        fair.admit("a", 4.0)
        assert fair.offered("b", 4, held) == 1
        held["b"] += 1
        fair.admit("b", 1.0)
        held["a"] = 2
        assert (fair.offered("a", 4, held), fair.offered("b", 4, held)) == (2, 2)
        assert fair.has_rivals("a") and fair.has_rivals("b")


async def test_fair_credits_of_a_frontdoor_that_leaves_a_credit_unused_go_to_others() -> None:
    changed = asyncio.Event()
    fair = FairCredits(changed.set)
    with fair.watching("a"), fair.watching("b"):
        fair.admit("b", 1.0)
        fair.admit("a", 1.0)
        assert (fair.offered("a", 4, {}), fair.offered("b", 4, {})) == (2, 2)
        fair.admit("a", 1.0)
        await changed.wait()
        assert fair.offered("a", 4, {"a": 1}) == 4
        # Its next request finds a place nevertheless.
        assert fair.offered("b", 4, {"a": 4}) == 1


async def test_fair_credits_are_not_held_for_a_frontdoor_that_uses_all() -> None:
    fair = FairCredits(lambda: None)
    with fair.watching("a"), fair.watching("b"):
        fair.admit("a", 1.0)
        fair.admit("b", 1.0)
        fair.offered("b", 4, {"a": 1, "b": 2})
        await asyncio.sleep(2 * UNUSED_S)
        assert fair.has_rivals("a")


async def test_fair_credits_of_a_frontdoor_that_left_go_to_others() -> None:
    fair = FairCredits(lambda: None)
    with fair.watching("a"):
        fair.admit("a", 1.0)
        with fair.watching("b"):
            fair.admit("b", 1.0)
        assert fair.offered("a", 4, {}) == 4
    fair.admit("b", 1.0)
    assert not fair.has_rivals("a")


def test_fair_credits_lapse_in_virtual_time() -> None:
    agenda = Agenda()
    fair = FairCredits(lambda: None, agenda.later)
    with fair.watching("a"), fair.watching("b"):
        fair.admit("a", 1.0)
        fair.admit("b", 1.0)
        assert (fair.reserve("a", 2), fair.offered("a", 4, {"a": 1, "b": 2})) == (0, 2)
        assert agenda.next_time() == UNUSED_S
        lapse, frontdoor = agenda.pop()
        lapse(frontdoor)
        assert (fair.reserve("b", 2), fair.offered("b", 4, {"a": 1, "b": 2})) == (2, 3)
