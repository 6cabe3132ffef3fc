"""What a picture asks of its ControlNets' streams, step by step."""

import asyncio
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, cast

import pytest
import torch

from pentimento.diffusion.controlnets import ControlSetting
from pentimento.diffusion.families.model import Conditioning, DenoiserInput
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import ControlNetMode, ControlNetSelection
from services.unet_worker.control import remote_control
from services.unet_worker.control.remote_control import RemoteControl, RemoteControlNet, naming_controlnet
from services.unet_worker.control.replicas import ControlNetReplicas
from tests.unit.unet_worker.orders import HELD, ORDER, ROUTE

INPUTS = DenoiserInput(torch.zeros(1, 4, 8, 8), torch.ones(1), Conditioning(torch.zeros(1, 2, 4)))
PIPELINED = replace(ROUTE, controlnet_mode=ControlNetMode.PIPELINED, pipelined_from_step=3)


class Replicas:
    def mention(self, addresses: tuple[str, ...]) -> None:
        """Nobody is there."""


class Recorded:
    """A stream that answers at once."""

    asked: list[tuple[int, int]]

    def __init__(self, *_: Any) -> None:
        Recorded.asked = []

    def ask_now(self, *_: object) -> None:
        """It has no line."""

    async def residuals(
        self, step: int, timestep: float, latents: object, keeps_from: int, sent_on: object = None
    ) -> str:
        self.asked.append((step, keeps_from))
        return f"of {step}"


@pytest.mark.parametrize(
    ("route", "asked"),
    [
        (ROUTE, [(step, step) for step in range(8)]),
        (PIPELINED, [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (5, 4), (6, 5)]),
    ],
    ids=["synchronous", "pipelined"],
)
async def test_residuals_are_kept_for_as_long_as_a_step_uses_them(
    monkeypatch: pytest.MonkeyPatch, route: Any, asked: list[tuple[int, int]]
) -> None:
    monkeypatch.setattr(remote_control, "ReplayedStream", Recorded)
    net = RemoteControlNet(ControlNetSelection("edges", b""), ControlSetting(), ("here",))
    control = RemoteControl(
        replace(ORDER, route=route), HELD, [net], cast(ControlNetReplicas, Replicas()), lambda: None
    )

    for step in range(8):
        control.ask(step, INPUTS)
        if step in control._asked:
            await asyncio.wrap_future(cast("Future[Any]", control._asked[step]))

    assert Recorded.asked == asked


class Answer(str):
    """What a stream answered; of a part something is still to come."""

    __slots__ = ()

    @property
    def awaited_count(self) -> int:
        return int(self.startswith("part"))


class Line:
    """A stream that has a line; it answers what it is told to."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.answered: set[int] = set()
        self.begun: set[int] = set()
        self.failed = False

    def arrived(self, step: int) -> str | None:
        if step in self.answered:
            return Answer(f"by line, {step}")
        return Answer(f"part of {step}") if step in self.begun else None


class Lined:
    """A stream that is opened with its first step, and from then on has a line until that fails."""

    def __init__(self, *_: Any) -> None:
        self.line = Line()
        self.by_loop: list[int] = []

    def ask_now(self, step: int, *_: object) -> Line | None:
        if self.line.failed or not self.by_loop:
            return None
        self.line.asked.append(step)
        return self.line

    def arrived(self, step: int) -> str | None:
        return self.line.arrived(step)

    def will_answer(self, sent_on: Line) -> bool:
        return not sent_on.failed

    async def residuals(self, step: int, timestep: float, latents: object, keeps_from: int, sent_on: object) -> str:
        self.by_loop.append(step)
        return f"by loop, {step}"


class Engine:
    """Asks and takes on the engine's thread, as it does."""

    def __init__(self, route: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(remote_control, "ReplayedStream", Lined)
        net = RemoteControlNet(ControlNetSelection("edges", b""), ControlSetting(), ("here",))
        replicas = Replicas()
        replicas.summing = list  # type: ignore[attr-defined]
        self._woken = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.control = RemoteControl(
            replace(ORDER, route=route),
            HELD,
            [net],
            cast(ControlNetReplicas, replicas),
            lambda: cast(None, loop.call_soon_threadsafe(self._woken.set)),
        )

    @property
    def stream(self) -> Lined:
        return cast(Lined, self.control._streams[0])

    async def ask(self, step: int) -> None:
        await asyncio.to_thread(self.control.ask, step, INPUTS)

    async def take(self, step: int) -> Any:
        return await asyncio.to_thread(self.control.take, step)

    async def taken(self, step: int) -> Any:
        async with asyncio.timeout(60):
            while (found := await self.take(step)) is None:
                await self._woken.wait()
                self._woken.clear()
        return found


async def test_where_there_is_a_line_the_event_loop_has_no_part_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(ROUTE, monkeypatch)
    await engine.ask(0)
    assert await engine.taken(0) == ["by loop, 0"]

    for step in (1, 2):
        await engine.ask(step)
        assert await engine.take(step) is None
        engine.stream.line.answered.add(step)
        assert await engine.take(step) == [f"by line, {step}"]

    assert (engine.stream.line.asked, engine.stream.by_loop) == ([1, 2], [0])


@pytest.mark.parametrize("answered", [False, True])
async def test_a_step_on_a_line_that_is_lost_is_asked_again_unless_it_was_answered(
    monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    engine = Engine(ROUTE, monkeypatch)
    await engine.ask(0)
    await engine.taken(0)
    await engine.ask(1)
    engine.stream.line.failed = True
    if answered:
        engine.stream.line.answered.add(1)

    assert await engine.taken(1) == ["by line, 1" if answered else "by loop, 1"]
    assert engine.stream.by_loop == ([0] if answered else [0, 1])


async def test_parts_are_taken_as_they_come_and_a_step_whose_line_is_lost_in_between_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine(ROUTE, monkeypatch)
    await engine.ask(0)
    await engine.taken(0)
    await engine.ask(1)
    engine.stream.line.begun.add(1)

    assert await engine.take(1) == ["part of 1"]
    assert engine.stream.by_loop == [0]

    engine.stream.line.failed = True
    engine.stream.line.begun.clear()
    assert await engine.taken(1) == ["by loop, 1"]
    assert engine.stream.by_loop == [0, 1]


async def test_steps_under_way_on_a_lost_line_are_asked_again_before_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine(replace(PIPELINED, pipelined_from_step=1), monkeypatch)
    await engine.ask(0)
    await engine.taken(0)
    await engine.ask(1)
    engine.stream.line.failed = True
    await engine.ask(2)

    assert await engine.taken(2) == ["by loop, 1"]
    assert engine.stream.by_loop == [0, 1, 2]


@pytest.mark.parametrize(
    ("field", "named"),
    [("controlnet.conditioning_image", "spec.controlnets[1].conditioning_image"), ("open.width_px", "open.width_px")],
)
def test_refusal_names_the_controlnet_by_its_place(field: str, named: str) -> None:
    with pytest.raises(InvalidArgument, match="must be whole") as refused, naming_controlnet(1):
        raise InvalidArgument.of(field, "must be whole")

    assert [one.field for one in refused.value.violations] == [named]
