"""ControlNets on a thread beside the engine."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch

from lab.fixtures.local_control import Control, LocalControl, LocalControlNets
from pentimento.diffusion.controlnets import (
    ControlNet,
    ControlSetting,
    ControlStep,
    ResidualsSoFar,
    summed,
    unheard,
)
from pentimento.diffusion.families import NO_CONTROL, ControlResiduals
from pentimento.domain.errors import Unavailable
from tests.unit.diffusion.controlnets.test_residuals import condition, inputs

FIRST_HALF = ControlSetting(end_fraction=0.5)
SECOND_HALF = ControlSetting(scale=0.5, start_fraction=0.5)


@pytest.fixture
def came() -> threading.Event:
    return threading.Event()


@pytest.fixture
def beside(came: threading.Event) -> Iterator[LocalControlNets]:
    made = LocalControlNets(wake=came.set)
    yield made
    made.close()


def taken(source: LocalControl, came: threading.Event, step_index: int) -> ControlResiduals:
    assert came.wait(60.0)
    came.clear()
    residuals = source.take(step_index)
    assert residuals is not None
    return residuals


class Gated:
    """The ControlNet itself, once it is let."""

    def __init__(self, network: ControlNet) -> None:
        self._network = network
        self.go = threading.Event()
        self.info, self.config, self.device, self.dtype = network.info, network.config, network.device, network.dtype

    def embed(self, told: torch.Tensor, row_count: int = 1) -> torch.Tensor:
        return self._network.embed(told, row_count)

    def residuals(self, steps: Sequence[ControlStep], tell: ResidualsSoFar = unheard) -> list[ControlResiduals]:
        assert self.go.wait(60.0)
        return self._network.residuals(steps, tell)


def test_residuals_come_later_and_wake_the_engine(
    controlnet: ControlNet, beside: LocalControlNets, came: threading.Event
) -> None:
    gated = Gated(controlnet)
    source = beside.source([Control(gated, condition(), row_count=2)], step_count=4)

    source.ask(0, inputs(1, 500.0))
    before = source.take(0)
    gated.go.set()
    residuals = taken(source, came, 0)

    assert before is None
    step = ControlStep(inputs(1, 500.0), controlnet.embed(condition(), 2), ControlSetting())
    wanted = controlnet.residuals([step])[0]
    assert all(torch.equal(one, other) for one, other in zip(residuals.tensors, wanted.tensors, strict=True))


def test_those_that_act_in_a_step_are_summed_and_none_is_no_control(
    controlnet: ControlNet, beside: LocalControlNets, came: threading.Event
) -> None:
    told = [condition(seed) for seed in range(3)]
    settings = (FIRST_HALF, SECOND_HALF, replace(SECOND_HALF, scale=2.0))
    controls = [Control(controlnet, one, 2, setting) for one, setting in zip(told, settings, strict=True)]
    source = beside.source(controls, step_count=5)

    source.ask(2, inputs(1, 500.0))  # 0.4..0.6: neither wholly in the first half nor in the second
    assert source.take(2) is NO_CONTROL
    source.ask(4, inputs(1, 100.0))
    residuals = taken(source, came, 4)

    steps = [
        ControlStep(inputs(1, 100.0), controlnet.embed(one, 2), setting)
        for one, setting in list(zip(told, settings, strict=True))[1:]
    ]
    wanted = summed([controlnet.residuals([step])[0] for step in steps])
    assert all(torch.equal(one, other) for one, other in zip(residuals.tensors, wanted.tensors, strict=True))


def test_what_goes_wrong_is_raised_where_it_is_taken(
    controlnet: ControlNet, beside: LocalControlNets, came: threading.Event
) -> None:
    class Broken(Gated):
        def residuals(self, steps: Sequence[ControlStep], tell: ResidualsSoFar = unheard) -> list[ControlResiduals]:
            raise Unavailable("CONTROLNET_LOST", "gone")

    source = beside.source([Control(Broken(controlnet), condition(), 2)], step_count=4)
    source.ask(0, inputs(1, 500.0))
    assert came.wait(60.0)

    with pytest.raises(Unavailable, match="gone"):
        source.take(0)
