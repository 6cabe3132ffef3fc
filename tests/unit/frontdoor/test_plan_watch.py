import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from pentimento.api.controller.v1 import controller_service_pb2 as pb
from pentimento.domain.backoff import Backoff
from pentimento.domain.clock import SystemClock
from pentimento.domain.fleet import Plan
from pentimento.domain.generation import PlanVersion
from pentimento.settings import SettingsError
from pentimento.stores.ledger import Journal
from pentimento.wire.codec import encode, to_bytes
from services.frontdoor.workers.plan_watch import PlanWatch

NOW_MS = int(time.time() * 1000)
SOUND = Plan(PlanVersion(NOW_MS, 1))
UNBELIEVABLE = Plan(PlanVersion(2**62, 1))


async def test_a_plan_of_an_epoch_that_no_controller_can_have_keeps_no_later_one_out(journal: Journal) -> None:
    watch = PlanWatch(None, journal, "frontdoor", SystemClock())
    taken: list[Plan] = []

    for plan in (UNBELIEVABLE, SOUND):
        await watch._take(plan, taken.append)

    assert taken == [SOUND]


@pytest.mark.parametrize(("saved", "loaded"), [(SOUND, SOUND), (UNBELIEVABLE, None)])
async def test_nor_does_one_that_was_saved_once(journal: Journal, saved: Plan, loaded: Plan | None) -> None:
    journal.save_plan(to_bytes(saved, pb.Plan)).result()

    assert await PlanWatch(None, journal, "frontdoor", SystemClock()).load() == loaded


def plan_of_a_newer_version() -> bytes:
    message = encode(SOUND, pb.Plan)
    message.endpoints.add(kind=max(pb.ReplicaKind.values()) + 1, instance_id="e1", address="unix:e1")  # type: ignore[arg-type]
    return message.SerializeToString()


@pytest.mark.parametrize("saved", [plan_of_a_newer_version(), b"\xff"], ids=["newer", "broken"])
async def test_a_saved_plan_that_is_not_understood_is_none(journal: Journal, saved: bytes) -> None:
    """Whoever starts over it goes on until its controller has a plan."""
    journal.save_plan(saved).result()

    assert await PlanWatch(None, journal, "frontdoor", SystemClock()).load() is None


class OnePlan:
    """A controller that tells its plan to whoever has none."""

    async def watch_plan(self, instance_id: str, have: PlanVersion | None) -> AsyncIterator[Plan]:
        if have is None:
            yield SOUND
        else:
            await asyncio.Event().wait()


async def test_a_plan_that_could_not_be_followed_is_followed_later(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that a channel to a new worker needs may be away for a while: the token, or a certificate."""
    monkeypatch.setattr("services.frontdoor.workers.plan_watch._RETRIES", Backoff(0.0, 0.0))
    watch = PlanWatch(OnePlan(), journal, "frontdoor", SystemClock())  # type: ignore[arg-type]
    failures = [SettingsError("service_token: cannot be read")]
    followed: asyncio.Future[Plan] = asyncio.get_running_loop().create_future()

    def follow(plan: Plan) -> None:
        if failures:
            raise failures.pop()
        followed.set_result(plan)

    running = asyncio.create_task(watch.run(follow))
    await asyncio.wait({running, followed}, return_when=asyncio.FIRST_COMPLETED)
    running.cancel()

    assert followed.done() and followed.result() == SOUND


async def test_a_plan_that_cannot_be_followed_is_tried_again_after_ever_longer_pauses(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try is an error in the log."""
    watch = PlanWatch(OnePlan(), journal, "frontdoor", SystemClock())  # type: ignore[arg-type]
    pauses: list[float] = []

    async def pause(delay_s: float) -> None:
        pauses.append(delay_s)
        if len(pauses) == 6:
            raise asyncio.CancelledError

    monkeypatch.setattr("services.frontdoor.workers.plan_watch.asyncio.sleep", pause)

    def follow(plan: Plan) -> None:
        raise SettingsError("service_token: cannot be read")

    with pytest.raises(asyncio.CancelledError):
        await watch.run(follow)

    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
