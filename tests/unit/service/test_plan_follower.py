import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from pentimento.api.controller.v1 import controller_service_pb2 as pb
from pentimento.domain.clock import Backoff
from pentimento.domain.fleet import Plan
from pentimento.domain.generation import PlanVersion
from pentimento.service.fleet_member import PlanFollower
from pentimento.settings import SettingsError
from pentimento.stores.ledger import Journal
from pentimento.wire.codec import encode, to_bytes

NOW_MS = int(time.time() * 1000)
SOUND = Plan(PlanVersion(NOW_MS, 1))
OLDER = Plan(PlanVersion(NOW_MS - 1, 5))
UNBELIEVABLE = Plan(PlanVersion(2**62, 1))


@pytest.mark.parametrize("others", [UNBELIEVABLE, OLDER], ids=["unbelievable", "older"])
async def test_follower_another_epoch_ignores_the_plan(journal: Journal, others: Plan) -> None:
    follower = PlanFollower(None, "frontdoor", store=journal)
    taken: list[Plan] = []

    await follower.take(SOUND, taken.append)
    await follower.take(others, taken.append)

    assert taken == [SOUND]
    assert follower.plan == SOUND


async def test_unbelievable_plan_keeps_no_later_one_out(journal: Journal) -> None:
    follower = PlanFollower(None, "frontdoor", store=journal)
    taken: list[Plan] = []

    for plan in (UNBELIEVABLE, SOUND):
        await follower.take(plan, taken.append)

    assert taken == [SOUND]


def plan_of_a_newer_version() -> bytes:
    message = encode(SOUND, pb.Plan)
    message.endpoints.add(kind=max(pb.ReplicaKind.values()) + 1, instance_id="e1", address="unix:e1")  # type: ignore[arg-type]
    return message.SerializeToString()


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        pytest.param(to_bytes(SOUND, pb.Plan), SOUND, id="sound"),
        pytest.param(to_bytes(UNBELIEVABLE, pb.Plan), None, id="unbelievable"),
        pytest.param(plan_of_a_newer_version(), None, id="newer"),
        pytest.param(b"\xff", None, id="broken"),
    ],
)
async def test_load_returns_a_saved_plan_it_can_believe(journal: Journal, saved: bytes, loaded: Plan | None) -> None:
    journal.save_plan(saved).result()

    assert await PlanFollower(None, "frontdoor", store=journal).load() == loaded


async def test_taken_plan_is_loaded_by_the_next_start(journal: Journal) -> None:
    await PlanFollower(None, "frontdoor", store=journal).take(SOUND, lambda plan: None)

    assert await PlanFollower(None, "frontdoor", store=journal).load() == SOUND


async def test_follower_without_a_store_loads_nothing() -> None:
    follower = PlanFollower(None, "worker")
    await follower.take(SOUND, lambda plan: None)

    assert await PlanFollower(None, "worker").load() is None


class OnePlan:
    """A controller that sends its plan to callers without one."""

    async def watch_plan(self, instance_id: str, have: PlanVersion | None) -> AsyncIterator[Plan]:
        if have is None:
            yield SOUND
        else:
            await asyncio.Event().wait()


async def test_plan_that_failed_is_taken_later(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that a channel to a new worker needs may be away for a while: the token, or a certificate."""
    monkeypatch.setattr("pentimento.service.fleet_member._RETRIES", Backoff(0.0, 0.0))
    follower = PlanFollower(OnePlan(), "frontdoor", store=journal)  # type: ignore[arg-type]
    failures = [SettingsError("service_token: cannot be read")]
    followed: asyncio.Future[Plan] = asyncio.get_running_loop().create_future()

    def follow(plan: Plan) -> None:
        if failures:
            raise failures.pop()
        followed.set_result(plan)

    running = asyncio.create_task(follower.run(follow))
    await asyncio.wait({running, followed}, return_when=asyncio.FIRST_COMPLETED)
    running.cancel()

    assert followed.done() and followed.result() == SOUND


async def test_plan_that_keeps_failing_waits_ever_longer(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try is an error in the log."""
    follower = PlanFollower(OnePlan(), "frontdoor", store=journal)  # type: ignore[arg-type]
    pauses: list[float] = []

    async def pause(delay_s: float) -> None:
        pauses.append(delay_s)
        if len(pauses) == 6:
            raise asyncio.CancelledError

    monkeypatch.setattr("pentimento.service.fleet_member.asyncio.sleep", pause)

    def follow(plan: Plan) -> None:
        raise SettingsError("service_token: cannot be read")

    with pytest.raises(asyncio.CancelledError):
        await follower.run(follow)

    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
