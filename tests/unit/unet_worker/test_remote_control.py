"""What a picture asks of its ControlNets' streams, step by step."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest
import torch

from pentimento.diffusion.controlnets import ControlSetting
from pentimento.diffusion.families.model import Conditioning, DenoiserInput
from pentimento.domain.generation import ControlNetMode, ControlNetSelection
from services.unet_worker.control import remote_control
from services.unet_worker.control.remote_control import RemoteControl, RemoteControlNet
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
            await asyncio.wrap_future(control._asked[step])

    assert Recorded.asked == asked
