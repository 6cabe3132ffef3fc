"""Residuals of ControlNets: against diffusers' own network, by picture, scaled, summed, within their share of steps."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import ControlNetModel
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lab.fixtures.checkpoints import WIDTH, write_controlnet
from pentimento.diffusion.controlnets import ControlNet, ControlSetting, ControlStep, load_controlnet, summed
from pentimento.diffusion.families import NO_CONTROL, Conditioning, ControlResiduals, DenoiserInput
from pentimento.domain.errors import InvalidArgument

EVERYWHERE = ControlSetting()


def condition(seed: int = 1) -> Tensor:
    return torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def inputs(seed: int, timestep: float, rows: int = 2) -> DenoiserInput:
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(rows, 16, WIDTH, generator=generator)
    latents = torch.randn(rows, 4, 8, 8, generator=generator)
    return DenoiserInput(latents, torch.full((rows,), timestep), Conditioning(states))


def step(network: ControlNet, seed: int, timestep: float = 500.0, rows: int = 2, **setting: Any) -> ControlStep:
    told = network.embed(condition(seed))
    return ControlStep(inputs(seed, timestep, rows), told, replace(EVERYWHERE, **setting))


@torch.inference_mode()
def by_diffusers(network: ControlNetModel, asked: DenoiserInput, told: Tensor, **options: Any) -> ControlResiduals:
    down, mid = network(
        asked.latents,
        asked.timesteps,
        encoder_hidden_states=asked.conditioning.states,
        controlnet_cond=told.expand(len(asked.latents), -1, -1, -1),
        return_dict=False,
        **options,
    )
    return ControlResiduals(tuple(down), mid)


def assert_equal(one: ControlResiduals, other: ControlResiduals, tolerance: float = 0.0) -> None:
    assert len(one.tensors) == len(other.tensors)
    for mine, theirs in zip(one.tensors, other.tensors, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=tolerance)


@pytest.mark.parametrize("order", ["rgb", "bgr"])
def test_residuals_are_diffusers_own_with_the_condition_embedded_once(tmp_path: Path, order: str) -> None:
    directory = write_controlnet(tmp_path / "one", controlnet_conditioning_channel_order=order)
    network = load_controlnet(directory, torch.device("cpu"), torch.float32)
    theirs = ControlNetModel.from_pretrained(directory)

    asked = step(network, seed=1, rows=1, scale=0.7)

    wanted = by_diffusers(theirs, asked.inputs, condition(1), conditioning_scale=0.7)
    assert_equal(network.residuals([asked])[0], wanted)


def test_pictures_that_share_a_pass_have_the_residuals_that_they_have_alone(controlnet: ControlNet) -> None:
    steps = [
        step(controlnet, seed=1, timestep=900.0, scale=0.5),
        step(controlnet, seed=2, timestep=10.0, rows=1),
        step(controlnet, seed=3, timestep=400.0),
    ]

    together = controlnet.residuals(steps)

    for one, asked in zip(together, steps, strict=True):
        alone = controlnet.residuals([asked])[0]
        assert len(one.down_block_residuals[0]) == len(asked.inputs.latents)
        assert_equal(one, alone, tolerance=1e-5)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"latents": torch.zeros(2, 8, 8, 8)}, "latents: must have 4 values in dimension 1"),
        ({"latents": torch.zeros(2, 4, 4, 4)}, "condition: must be of the image's size"),
        ({"conditioning": Conditioning(torch.zeros(2, 16, 8))}, "text_states: must have 16 values in dimension 2"),
        ({"conditioning": Conditioning(torch.zeros(2, 16))}, "text_states: must have 16 values in dimension 2"),
    ],
)
def test_a_step_that_does_not_fit_the_network_is_named(
    controlnet: ControlNet, change: dict[str, Any], named: str
) -> None:
    asked = step(controlnet, seed=1)

    with pytest.raises(InvalidArgument, match=named):
        controlnet.residuals([replace(asked, inputs=replace(asked.inputs, **change))])


@pytest.mark.parametrize(
    ("told", "named"),
    [
        (torch.zeros(1, 4, 32, 32), r"must be of shape \(rows, 3, height, width\), got \[1, 4, 32, 32\]"),
        (torch.zeros(3, 32, 32), r"got \[3, 32, 32\]"),
        (torch.zeros(0, 3, 32, 32), "must be of shape"),
        (torch.full((1, 3, 32, 32), math.nan), "must hold finite numbers"),
        (torch.full((1, 3, 32, 32), math.inf), "must hold finite numbers"),
    ],
)
def test_a_condition_that_is_wrong_is_named(controlnet: ControlNet, told: Tensor, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        controlnet.embed(told)


def test_a_flows_step_that_does_not_fit_is_named(flow_controlnet: ControlNet) -> None:
    states = Conditioning(torch.zeros(1, 5, 40), torch.zeros(1, 36))
    fitting = DenoiserInput(torch.zeros(1, 8, 8, 8), torch.zeros(1), states)
    told = flow_controlnet.embed(torch.zeros(1, 8, 8, 8))
    wrong = {
        "text_states: must have 40 values": replace(fitting, conditioning=Conditioning(states.states[..., :8])),
        "pooled_states: must have 36 values": replace(fitting, conditioning=Conditioning(states.states)),
        "condition: must make 4 patches, got 16": replace(fitting, latents=torch.zeros(1, 8, 4, 4)),
    }

    assert len(flow_controlnet.residuals([ControlStep(fitting, told, EVERYWHERE)])[0].block_residuals) == 1
    for named, asked in wrong.items():
        with pytest.raises(InvalidArgument, match=named):
            flow_controlnet.residuals([ControlStep(asked, told, EVERYWHERE)])


def made(value: float) -> ControlResiduals:
    return ControlResiduals((torch.full((1, 2), value),), torch.full((1, 2), 10 * value))


def test_residuals_of_several_are_summed_and_those_of_none_left_out() -> None:
    total = summed([NO_CONTROL, made(1.0), NO_CONTROL, made(2.0)])

    assert_equal(total, made(3.0))
    assert summed([NO_CONTROL, NO_CONTROL]) is NO_CONTROL
    assert summed([]) is NO_CONTROL


@pytest.mark.parametrize(
    "other",
    [
        ControlResiduals((torch.ones(1, 2),)),
        ControlResiduals((torch.ones(1, 2), torch.ones(1, 2)), torch.ones(1, 2)),
        ControlResiduals(block_residuals=(torch.ones(1, 2),)),
    ],
)
def test_residuals_for_other_blocks_are_not_summed(other: ControlResiduals) -> None:
    with pytest.raises(ValueError, match="residuals"):
        summed([made(1.0), other])


@given(
    count=st.integers(1, 60),
    start=st.floats(0.0, 0.99),
    length=st.floats(0.01, 1.0),
)
def test_it_acts_in_the_steps_in_which_diffusers_keeps_it(count: int, start: float, length: float) -> None:
    end = min(start + length, 1.0)
    setting = ControlSetting(start_fraction=start, end_fraction=end)

    acting = [setting.acts_at(index, count) for index in range(count)]

    assert acting == [1.0 - float(i / count < start or (i + 1) / count > end) == 1.0 for i in range(count)]


@given(
    count=st.integers(1, 60),
    first_share=st.floats(0.0, 0.99),
    start=st.floats(0.0, 0.99),
    length=st.floats(0.01, 1.0),
)
def test_window_of_image_start_counts_over_steps_left(
    count: int, first_share: float, start: float, length: float
) -> None:
    first, end = int(first_share * count), min(start + length, 1.0)
    asked = ControlSetting(start_fraction=start, end_fraction=end)

    setting = asked.over_steps_from(first, count)

    left = count - first
    kept = [not (i / left < start or (i + 1) / left > end) for i in range(left)]
    assert [setting.acts_at(index, count) for index in range(count)] == [False] * first + kept
    setting.check("controlnets[0]")


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        (
            ControlSetting(scale=math.nan),
            "controlnets\\[0\\].conditioning_scale: must be a number between -100 and 100",
        ),
        (ControlSetting(scale=101.0), "got 101"),
        (ControlSetting(start_fraction=1.0), "controlnets\\[0\\].start_fraction: must be in 0..1, below 1"),
        (ControlSetting(start_fraction=math.nan), "start_fraction"),
        (ControlSetting(start_fraction=-0.1), "start_fraction"),
        (ControlSetting(start_fraction=0.5, end_fraction=0.5), "end_fraction: must be above start_fraction"),
        (ControlSetting(end_fraction=1.1), "at most 1, got 1.1"),
        (ControlSetting(end_fraction=math.nan), "end_fraction"),
    ],
)
def test_a_setting_out_of_bounds_is_named(setting: ControlSetting, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        setting.check("controlnets[0]")


def test_settings_within_bounds_pass() -> None:
    ControlSetting(scale=-100.0, start_fraction=0.0, end_fraction=1.0).check("controlnets[0]")
    ControlSetting(scale=0.0, start_fraction=0.99, end_fraction=1.0).check("controlnets[0]")
