"""Places to receive messages in: within their number, distributed by key, and always given back."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from pentimento.rpc.intake import ReceivingTurns
from tests.support.waiting import settle_down


class Crowd:
    """Tasks that enter for a key and note it."""

    def __init__(self, turns: ReceivingTurns) -> None:
        self.turns = turns
        self.entered: list[str] = []
        self.left_count = 0
        self.tasks: list[asyncio.Task[None]] = []

    async def come(self, *keys: str) -> None:
        for key in keys:
            self.tasks.append(asyncio.create_task(self._enter(key)))
            await settle_down()

    async def leave(self) -> None:
        """Let the earliest of the present keys leave."""
        self.turns.leave(self.entered[self.left_count])
        self.left_count += 1
        await settle_down()

    async def _enter(self, key: str) -> None:
        await self.turns.enter(key)
        self.entered.append(key)


async def test_waiting_messages_get_turns_by_key() -> None:
    crowd = Crowd(ReceivingTurns(quick_count=1, steady_count=0, quick_share=1, steady_share=0))
    await crowd.come("first", "greedy", "greedy", "greedy", "modest")

    for _ in range(4):
        await crowd.leave()

    assert crowd.entered == ["first", "greedy", "modest", "greedy", "greedy"]


async def test_one_key_leaves_quick_places_to_others() -> None:
    crowd = Crowd(ReceivingTurns(quick_count=2, steady_count=0, quick_share=1, steady_share=0))

    await crowd.come("greedy", "greedy", "modest")

    assert crowd.entered == ["greedy", "modest"]


async def test_a_key_that_waits_for_its_own_share_does_not_hold_up_the_next() -> None:
    crowd = Crowd(ReceivingTurns(quick_count=2, steady_count=0, quick_share=1, steady_share=0))
    await crowd.come("modest", "greedy", "greedy", "third")

    await crowd.leave()

    assert crowd.entered == ["modest", "greedy", "third"]


async def test_place_offered_to_cancelled_wait_goes_to_next() -> None:
    crowd = Crowd(ReceivingTurns(quick_count=1, steady_count=0, quick_share=1, steady_share=0))
    await crowd.come("first", "gone", "next")

    crowd.turns.leave("first")
    crowd.tasks[1].cancel()
    await settle_down()

    assert crowd.entered == ["first", "next"]


async def test_cancelled_wait_is_skipped() -> None:
    crowd = Crowd(ReceivingTurns(quick_count=1, steady_count=0, quick_share=1, steady_share=0))
    await crowd.come("first", "gone", "next")
    crowd.tasks[1].cancel()
    await settle_down()

    await crowd.leave()

    assert crowd.entered == ["first", "next"]
    assert not crowd.turns.waited_for


async def test_places_end_by_share_and_are_free_once_left() -> None:
    shared, all_ = ReceivingTurns(1, 4, 1, 2), ReceivingTurns(1, 2, 1, 2)
    assert [shared.settle(key) for key in "aaab"] == [True, True, False, True]
    assert [all_.settle(key) for key in "abc"] == [True, True, False]
    # One of its two places is free again: the other is still held.
    shared.unsettle("a")
    assert [shared.settle("a"), shared.settle("a")] == [True, False]

    quick = ReceivingTurns(9, 1, 2, 1)
    await quick.enter("a")
    await quick.enter("a")
    quick.leave("a")
    await quick.enter("a")
    assert not quick.may_enter("a")


async def test_key_without_place_is_forgotten() -> None:
    turns = ReceivingTurns(2, 2, 2, 2)
    for number in range(5):
        await turns.enter(f"peer {number}")
        turns.settle(f"peer {number}")
        turns.leave(f"peer {number}")
        turns.unsettle(f"peer {number}")

    assert (dict(turns._quick._by_key), dict(turns._steady._by_key), turns._waiting) == ({}, {}, {})


@given(st.integers(1, 3), st.lists(st.one_of(st.sampled_from("abc"), st.integers(0, 20)), max_size=60))
def test_no_more_than_the_quick_places_are_ever_taken(quick_count: int, script: list[str | int]) -> None:
    """A letter enters; a number makes that one leave, in any state."""

    async def play() -> None:
        turns = ReceivingTurns(quick_count, 0, quick_count, 0)
        crowd = Crowd(turns)
        inside = most = 0
        for step in script:
            before = len(crowd.entered)
            if isinstance(step, str):
                await crowd.come(step)
            elif inside:
                await crowd.leave()
                inside -= 1
            elif crowd.tasks:
                crowd.tasks[step % len(crowd.tasks)].cancel()
                await settle_down()
            inside += len(crowd.entered) - before
            most = max(most, inside)
            assert not (turns.waited_for and inside < quick_count)
        assert most <= quick_count
        for task in crowd.tasks:
            task.cancel()
        await asyncio.gather(*crowd.tasks, return_exceptions=True)

    asyncio.run(play())
