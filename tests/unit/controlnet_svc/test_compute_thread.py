"""Test which steps share a forward pass, and the layers of their residuals."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
import torch
from torch import Tensor

from pentimento.diffusion.controlnets import ControlSetting, ControlStep, ResidualsSoFar, unheard
from pentimento.diffusion.families.model import Conditioning, ControlResiduals, DenoiserInput
from pentimento.domain.errors import InvalidArgument
from pentimento.tensors.step_server import one_ahead
from services.controlnet_svc.compute.thread import ComputeThread, StreamStep
from services.controlnet_svc.streams import are_of, layers_of


@dataclass
class Network:
    """Answers each step with its latents, and notes the timesteps of every pass."""

    passes: list[list[float]] = field(default_factory=list)

    def residuals(self, steps: Sequence[ControlStep], tell: ResidualsSoFar = unheard) -> list[ControlResiduals]:
        self.passes.append([float(step.inputs.timesteps[0]) for step in steps])
        return [ControlResiduals((step.inputs.latents,), None) for step in steps]


@pytest.fixture
def compute() -> Iterator[ComputeThread]:
    thread = ComputeThread(8)
    yield thread
    thread.close()


def step_of(stream: object, network: Network, timestep: float) -> StreamStep:
    inputs = DenoiserInput(torch.zeros(1, 4, 2, 2), torch.tensor([timestep]), Conditioning(torch.zeros(1, 3, 5)))
    asked = ControlStep(inputs, torch.zeros(1, 4, 2, 2), ControlSetting())

    def latents(residuals: ControlResiduals) -> Tensor:
        return residuals.down_block_residuals[0]

    return StreamStep(stream, network, asked, latents)  # type: ignore[arg-type]


def passes_of(compute: ComputeThread, asked: Sequence[tuple[str, float]]) -> list[list[float]]:
    """Return the timesteps of each pass, for steps (stream, timestep) that wait together."""
    network, go_on = Network(), threading.Event()
    busy = compute.call(go_on.wait)
    futures = [compute.submit(step_of(stream, network, timestep)) for stream, timestep in asked]
    go_on.set()
    for future in (busy, *futures):
        future.result(60.0)
    return network.passes


def test_steps_of_different_streams_share_a_pass(compute: ComputeThread) -> None:
    assert passes_of(compute, [("a", 900.0), ("b", 500.0), ("c", 100.0)]) == [[900.0, 500.0, 100.0]]


def test_two_steps_of_one_stream_never_share_a_pass(compute: ComputeThread) -> None:
    asked = [("a", 900.0), ("a", 800.0), ("b", 500.0), ("a", 700.0), ("b", 400.0)]

    assert passes_of(compute, asked) == [[900.0, 500.0], [800.0, 400.0], [700.0]]


class InParts(Network):
    """Report residuals one after the other; the first pass breaks before the last."""

    def residuals(self, steps: Sequence[ControlStep], tell: ResidualsSoFar = unheard) -> list[ControlResiduals]:
        super().residuals(steps)
        wholes = [ControlResiduals(block_residuals=(step.inputs.latents,) * 3) for step in steps]
        for there in (1, 2):
            parts = [one.block_residuals[:there] for one in wholes]
            tell([ControlResiduals(block_residuals=part, awaited_count=3 - there) for part in parts])
        if len(self.passes) == 1:
            raise ValueError("before the last part")
        return wholes


def test_parts_are_delivered_to_steps_that_take_them_and_again_after_error(compute: ComputeThread) -> None:
    network, go_on = InParts(), threading.Event()
    awaited: dict[str, list[int]] = {"in parts": [], "whole": [], "refuses": []}

    def deliver(name: str, residuals: ControlResiduals) -> str:
        awaited[name].append(residuals.awaited_count)
        if name == "refuses":
            raise InvalidArgument.of("residuals", "must not come in parts")
        return name

    busy = compute.call(go_on.wait)
    asked = [
        replace(step_of(name, network, 500.0), deliver=partial(deliver, name), in_parts=name != "whole")
        for name in awaited
    ]
    futures = [compute.submit(step) for step in asked]
    go_on.set()

    assert [future.result(60.0) for future in (busy, *futures[:2])] == [True, "in parts", "whole"]
    # Both are computed again, each alone; the step with its own failure is not.
    assert awaited == {"in parts": [2, 1, 2, 1, 0], "whole": [0], "refuses": [2]}
    assert [len(one) for one in network.passes] == [3, 1, 1]
    with pytest.raises(InvalidArgument):
        futures[2].result(60.0)


RESIDUALS = ControlResiduals((torch.zeros(1, 2, 4, 4), torch.zeros(1, 3, 2, 2)), torch.zeros(1, 3, 2, 2))


def test_residuals_have_their_own_layers() -> None:
    layers = layers_of(RESIDUALS)

    assert [layer.layer for layer in layers] == ["down_block_0", "down_block_1", "mid_block"]
    assert are_of(RESIDUALS, layers)


def test_a_layer_more_or_less_or_of_another_size_or_name_is_another() -> None:
    layers, (first, second), mid = layers_of(RESIDUALS), RESIDUALS.down_block_residuals, RESIDUALS.mid_block_residual

    for other in (
        ControlResiduals((first, second)),
        ControlResiduals((first, second, second), mid),
        ControlResiduals((first, second[:, :2]), mid),
        ControlResiduals((second, first), mid),
        ControlResiduals((first,), mid, (second,)),
    ):
        assert not are_of(other, layers)


class Source:
    """Count to three, and then fail on request."""

    def __init__(self, fails: bool = False) -> None:
        self.begun = 0
        self.closed = False
        self._fails = fails

    async def items(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(3):
                self.begun = number + 1
                await asyncio.sleep(0)
                yield number
            if self._fails:
                raise ValueError("broken")
        finally:
            self.closed = True


async def test_items_come_in_order_with_next_one_begun_ahead() -> None:
    source = Source()
    begun = []
    async with aclosing(one_ahead(source.items())) as items:
        async for number in items:
            await asyncio.sleep(0.01)
            begun.append((number, source.begun))

    assert begun == [(0, 2), (1, 3), (2, 3)]
    assert source.closed


async def test_error_of_source_comes_after_its_items() -> None:
    source = Source(fails=True)
    seen = []
    with pytest.raises(ValueError, match="broken"):
        async for number in one_ahead(source.items()):
            seen.append(number)

    assert seen == [0, 1, 2]
    assert source.closed


async def test_unread_source_is_closed() -> None:
    source = Source(fails=True)
    async with aclosing(one_ahead(source.items())) as items:
        async for _ in items:
            break

    assert source.closed
    assert len(asyncio.all_tasks()) == 1
