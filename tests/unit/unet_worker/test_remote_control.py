"""Send the steps of a request to the streams of its ControlNets."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest
import torch

from pentimento.diffusion.controlnets import ControlSetting
from pentimento.diffusion.families.model import Conditioning, DenoiserInput
from pentimento.domain.errors import InvalidArgument, ResourceExhausted
from pentimento.domain.generation import ControlNetMode, ControlNetSelection
from services.unet_worker.remote import remote_control, replayed_stream
from services.unet_worker.remote.remote_control import RemoteControl, RemoteControlNet, naming_controlnet
from services.unet_worker.remote.replicas import ControlNetReplicas
from tests.support.logged import said_by
from tests.unit.unet_worker.orders import HELD, ORDER, ROUTE
from tests.unit.unet_worker.test_replayed_stream import Place, settled

INPUTS = DenoiserInput(torch.zeros(1, 4, 8, 8), torch.ones(1), Conditioning(torch.zeros(1, 2, 4)))
PIPELINED = replace(ROUTE, controlnet_mode=ControlNetMode.PIPELINED, pipelined_from_step=3)


class Replicas:
    def __init__(self) -> None:
        self.summed: list[list[object]] = []

    def mention(self, addresses: tuple[str, ...]) -> None:
        """Ignore the addresses: no replica exists."""

    def summing(self, answers: list[object]) -> object:
        self.summed.append(answers)
        return answers


class Controlled:
    """A request with one ControlNet, and the streams that it opens."""

    def __init__(self, route: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place, self.replicas = Place(), Replicas()
        monkeypatch.setattr(remote_control, "StreamPlace", lambda *_: self.place)
        net = RemoteControlNet(ControlNetSelection("edges", b""), ControlSetting(), ("here",))
        replicas = cast(ControlNetReplicas, self.replicas)
        self.control = RemoteControl(replace(ORDER, route=route), HELD, [net], replicas, lambda: None)


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
    controlled = Controlled(route, monkeypatch)
    for step in range(8):
        controlled.control.ask(step, INPUTS)
        await settled()

    assert controlled.place.stream(0).asked == asked
    controlled.control.close()


async def test_where_there_is_a_line_the_event_loop_has_no_part_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test awaits nothing after the opening: the loop does not run."""
    controlled = Controlled(ROUTE, monkeypatch)
    controlled.control.ask(0, INPUTS)
    await settled()
    stream = controlled.place.stream(0)

    for step in range(3):
        if step:
            controlled.control.ask(step, INPUTS)
        assert controlled.control.take(step) is None
        answers = [stream.answer(step, awaited_count=1), stream.answer(step)]
        assert controlled.control.take(step) == controlled.control.take(step) == [answers[1]]

    assert [step for step, _ in stream.asked] == [0, 1, 2]
    # Each answer is summed once.
    assert len(controlled.replicas.summed) == 3
    controlled.control.close()


async def test_parts_are_summed_as_they_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    controlled = Controlled(ROUTE, monkeypatch)
    controlled.control.ask(0, INPUTS)
    await settled()
    stream = controlled.place.stream(0)

    for awaited_count in (2, 1, 0):
        answer = stream.answer(0, awaited_count)
        assert await asyncio.to_thread(controlled.control.take, 0) == [answer]

    controlled.control.close()


async def test_full_replicas_end_the_request_by_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(replayed_stream, "FULL_WAIT_S", 0.0)
    monkeypatch.setattr(remote_control, "MAX_FULL_TRIES", 2)
    controlled = Controlled(ROUTE, monkeypatch)
    controlled.place.full_count = 2
    controlled.control.ask(0, INPUTS)
    await settled()

    with pytest.raises(ResourceExhausted) as caught:
        controlled.control.take(0)

    assert (caught.value.reason, caught.value.retry_after_ms) == ("CONTROLNET_FULL", 1000)
    said = said_by("services.unet_worker.remote.remote_control", caplog)
    assert [record.getMessage() for record in said] == ["every replica of a ControlNet is full: NO_CREDIT"]
    controlled.control.close()


@pytest.mark.parametrize(
    ("field", "named"),
    [("controlnet.conditioning_image", "spec.controlnets[1].conditioning_image"), ("open.width_px", "open.width_px")],
)
def test_refusal_names_the_controlnet_by_its_place(field: str, named: str) -> None:
    with pytest.raises(InvalidArgument, match="must be whole") as refused, naming_controlnet(1):
        raise InvalidArgument.of(field, "must be whole")

    assert [one.field for one in refused.value.violations] == [named]
