"""A replica's place in the fleet, against controllers that are absent, forgetful, slow and nonsensical."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.clients import controller as controller_client
from pentimento.clients.controller import (
    NO_NEWS,
    Registration,
    RegistrationNews,
    generation_at,
    report_interval_s,
)
from pentimento.domain.adapters import Adapter, AdapterKind
from pentimento.domain.clock import Backoff
from pentimento.domain.errors import FailedPrecondition, NotFound, Unavailable
from pentimento.domain.fleet import Replica, ReplicaKind, ReplicaLease, ReplicaReport
from tests.support.logged import said_by

FAST = {"RETRIES": Backoff(0.001, 0.004), "CALL_TIMEOUT_S": 120.0, "CLOSE_TIMEOUT_S": 120.0, "MIN_INTERVAL_S": 0.001}
REPLICA = Replica("w1", ReplicaKind.UNET_WORKER, "unix:/w1", 7)
LEASE = ReplicaLease(lease_ms=10, report_interval_ms=2, leader_epoch=1)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in FAST.items():
        monkeypatch.setattr(controller_client, name, value)


class ScriptedController:
    """Answer each call by the next line of the script, and later ones by its last line."""

    def __init__(self, register: list[object], report: list[object], deregister: object = None) -> None:
        self.script = {"register": register, "report": report, "deregister": [deregister]}
        self.calls: list[str] = []
        self.arrived = asyncio.Condition()

    async def register(self, replica: Replica) -> ReplicaLease:
        answer = await self._next("register")
        assert isinstance(answer, ReplicaLease)
        return answer

    async def report(self, report: ReplicaReport) -> object:
        return await self._next("report")

    async def deregister(self, instance_id: str, generation: int) -> None:
        assert (instance_id, generation) == ("w1", 7)
        await self._next("deregister")

    async def _next(self, name: str) -> object:
        async with self.arrived:
            self.calls.append(name)
            self.arrived.notify_all()
        lines = self.script[name]
        line = lines.pop(0) if len(lines) > 1 else lines[0]
        if isinstance(line, Exception):
            raise line
        if line is asyncio.sleep:
            await asyncio.sleep(3600)
        return line

    async def until(self, happened: Callable[[list[str]], bool]) -> None:
        async with asyncio.timeout(120), self.arrived:
            await self.arrived.wait_for(lambda: happened(self.calls))


def registration(
    controller: ScriptedController,
    news: RegistrationNews = NO_NEWS,
    **parts: Callable[[], object],
) -> Registration:
    callbacks = {"replica": lambda: REPLICA, "report": lambda: ReplicaReport("w1", 7), **parts}
    return Registration(controller, news=news, **callbacks)


async def running(
    controller: ScriptedController,
    until: Callable[[list[str]], bool],
    news: RegistrationNews = NO_NEWS,
    **parts: Callable[[], object],
) -> None:
    """Run a registration until the calls satisfy `until`, then close it."""
    kept = registration(controller, news, **parts)
    kept.start()
    try:
        await controller.until(until)
    finally:
        await kept.close()


def says(*calls: str) -> Callable[[list[str]], bool]:
    return lambda seen: seen[: len(calls)] == list(calls)


AWAY = Unavailable("UNAVAILABLE", "no such socket")
GONE = NotFound("REPLICA_NOT_REGISTERED", "who?")


@pytest.mark.parametrize(
    ("register", "report", "calls"),
    [
        ([LEASE], [1], "register report report"),
        # The controller is away, has restarted, or hangs.
        ([AWAY, AWAY, AWAY, LEASE], [1], "register register register register report"),
        ([LEASE], [1, GONE, 1], "register report report register report"),
        ([LEASE], [asyncio.sleep, 1], "register report report report"),
    ],
)
async def test_replica_stays_registered(
    monkeypatch: pytest.MonkeyPatch, register: list[object], report: list[object], calls: str
) -> None:
    controller = ScriptedController(list(register), list(report))
    if asyncio.sleep in report:
        monkeypatch.setattr(controller_client, "CALL_TIMEOUT_S", 0.05)

    await running(controller, says(*calls.split()))

    assert controller.calls[-1] == "deregister"


async def test_change_outside_reports_is_registered_again() -> None:
    controller = ScriptedController([LEASE], [1])

    def replica() -> Replica:
        """Return a replica with another held model and LoRA for every report, and one model less from the third on."""
        can_hold = ("tiny", "other") if controller.calls.count("report") < 2 else ("tiny",)
        held = ("tiny", "other")[len(controller.calls) % 2]
        loras = (Adapter(held, AdapterKind.LORA, f"sha256:{held}", "sdxl"),)
        changes = {"resident_models": (held,), "held_model_digest": held, "adapters": loras}
        return replace(REPLICA, available_models=can_hold, **changes)  # type: ignore[arg-type]

    told = ("register", "report", "report", "register", "report", "report")
    await running(controller, says(*told), replica=replica)

    assert controller.calls[: len(told)] == list(told)


async def test_news_receives_registrations_and_answered_reports(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(controller_client, "CALL_TIMEOUT_S", 0.2)
    controller = ScriptedController([LEASE], [1, asyncio.sleep, AWAY, 1, GONE, 1])
    told: list[str] = []
    news = RegistrationNews(lambda: told.append("registered"), lambda: told.append("answered"))

    await running(
        controller,
        lambda calls: calls.count("report") >= 7,
        news=news,
    )

    assert told[:5] == ["registered", "answered", "answered", "registered", "answered"]


async def test_a_superseded_replica_asks_for_its_place_back_without_end(caplog: pytest.LogCaptureFixture) -> None:
    superseded = FailedPrecondition("REPLICA_SUPERSEDED", "a newer start is live")
    controller = ScriptedController([LEASE, superseded, superseded, LEASE], [superseded, 1])

    await running(controller, says("register", "report", "register", "register", "register", "report"))

    errors = [one.getMessage() for one in said_by("pentimento.clients.controller", caplog) if one.levelname == "ERROR"]
    assert errors == ["the controller rejects this replica (REPLICA_SUPERSEDED): a newer start is live"]


async def test_a_report_that_cannot_be_made_does_not_end_the_registration():
    answers = iter([ValueError("not yet"), ReplicaReport("w1", 7)])

    def report() -> ReplicaReport:
        answer = next(answers, ReplicaReport("w1", 7))
        if isinstance(answer, Exception):
            raise answer
        return answer

    controller = ScriptedController([LEASE], [1])

    await running(controller, says("register", "report"), report=report)


async def test_close_waits_for_hanging_controller_up_to_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(controller_client, "CLOSE_TIMEOUT_S", 0.5)
    controller = ScriptedController([LEASE], [1], deregister=asyncio.sleep)

    async with asyncio.timeout(120):
        await running(controller, says("register"))

    assert controller.calls[-1] == "deregister"


async def test_closed_registration_that_never_ran_makes_no_call():
    controller = ScriptedController([LEASE], [1])
    kept = registration(controller)
    await kept.close()

    await kept.run()

    assert controller.calls == []


async def test_report_soon_does_not_wait_for_its_turn():
    controller = ScriptedController(
        [ReplicaLease(lease_ms=3_600_000, report_interval_ms=1_800_000, leader_epoch=1)], [1]
    )
    kept = registration(controller)
    kept.start()
    await controller.until(says("register"))

    kept.report_soon()

    await controller.until(says("register", "report"))
    await kept.close()


async def test_cancelling_the_task_that_runs_it_ends_it():
    controller = ScriptedController([LEASE], [1])
    kept = registration(controller)
    task = asyncio.create_task(kept.run())
    await controller.until(says("register"))

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    await kept.close()
    assert controller.calls[-1] == "deregister"


numbers = st.one_of(st.integers(), st.floats(allow_nan=True, allow_infinity=True))


@given(numbers, numbers)
def test_whatever_a_lease_says_reports_come_within_our_own_limits(lease_ms, interval_ms):
    interval_s = report_interval_s(ReplicaLease(lease_ms, interval_ms, 1))

    assert controller_client.MIN_INTERVAL_S <= interval_s <= 10.0


@given(st.integers(200, 10_000), st.integers(100, 20_000))
def test_a_lease_gets_two_reports_at_least(lease_ms, interval_ms):
    assert report_interval_s(ReplicaLease(lease_ms, interval_ms, 1)) <= lease_ms / 2000


def test_a_generation_grows_with_the_clock():
    class Clock:
        def __init__(self, wall_s: float) -> None:
            self.wall_s = wall_s

        def monotonic(self) -> float:
            return math.nan

        def wall(self) -> float:
            return self.wall_s

    assert generation_at(Clock(1000.0)) < generation_at(Clock(1000.001))
