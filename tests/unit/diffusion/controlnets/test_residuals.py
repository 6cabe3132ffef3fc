"""ControlNets: conditions and residuals against diffusers, in batches, summed, in their steps, on a thread."""

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import ControlNetModel, ControlNetUnionModel
from diffusers.image_processor import VaeImageProcessor
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor
from torch.nn import functional

from lab.fixtures.checkpoints import WIDTH, write_controlnet
from lab.fixtures.local_control import Control, LocalControl, LocalControlNets
from pentimento.diffusion.controlnets import (
    ControlNet,
    ControlSetting,
    ControlStep,
    ResidualsSoFar,
    load_controlnet,
    summed,
    unheard,
)
from pentimento.diffusion.families import NO_CONTROL, Conditioning, ControlResiduals, DenoiserInput, DiffusionModel
from pentimento.diffusion.images import decode_condition
from pentimento.domain.errors import InvalidArgument, Unavailable
from tests.support.images import png_of

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
def by_diffusers(network: Any, asked: DenoiserInput, told: Tensor | list[Tensor], **options: Any) -> ControlResiduals:
    down, mid = network(
        asked.latents,
        asked.timesteps,
        encoder_hidden_states=asked.conditioning.states,
        controlnet_cond=told if isinstance(told, list) else told.expand(len(asked.latents), -1, -1, -1),
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


def test_residuals_of_shared_pass_equal_single_runs(controlnet: ControlNet) -> None:
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


def test_union_rows_of_several_kinds_equal_diffusers(union_directory: Path) -> None:
    network = load_controlnet(union_directory, torch.device("cpu"), torch.float32)
    theirs = ControlNetUnionModel.from_pretrained(union_directory)
    generator = torch.Generator().manual_seed(5)
    texts = Conditioning(*(torch.randn(2, *shape, generator=generator) for shape in ((16, 40), (20,), (6,))))
    asked = [
        replace(step(network, seed), inputs=replace(inputs(seed, 400.0), conditioning=texts), kind=kind)
        for seed, kind in ((1, 0), (2, 3), (3, 5))
    ]

    found = network.residuals(asked)

    assert network.info.kind_count == 6
    for one, (place, of_picture) in zip(asked, enumerate(found, 1), strict=True):
        options = {
            "control_type": functional.one_hot(torch.full((2,), one.kind), 6).float(),
            "control_type_idx": [one.kind],
            "added_cond_kwargs": {"text_embeds": texts.pooled, "time_ids": texts.sizes},
        }
        wanted = by_diffusers(theirs, one.inputs, [condition(place).expand(2, -1, -1, -1)], **options)
        assert_equal(of_picture, wanted, tolerance=1e-5)


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


def test_sum_skips_no_control() -> None:
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


@given(count=st.integers(1, 60), start=st.floats(0.0, 0.99), length=st.floats(0.01, 1.0))
def test_it_acts_in_the_steps_in_which_diffusers_keeps_it(count: int, start: float, length: float) -> None:
    end = min(start + length, 1.0)
    setting = ControlSetting(start_fraction=start, end_fraction=end)

    acting = [setting.acts_at(index, count) for index in range(count)]

    assert acting == [1.0 - float(i / count < start or (i + 1) / count > end) == 1.0 for i in range(count)]


@given(
    count=st.integers(1, 60), first_share=st.floats(0.0, 0.99), start=st.floats(0.0, 0.99), length=st.floats(0.01, 1.0)
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


def test_acting_controlnets_are_summed_and_none_is_no_control(
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


def test_error_is_raised_by_take(controlnet: ControlNet, beside: LocalControlNets, came: threading.Event) -> None:
    class Broken(Gated):
        def residuals(self, steps: Sequence[ControlStep], tell: ResidualsSoFar = unheard) -> list[ControlResiduals]:
            raise Unavailable("CONTROLNET_LOST", "gone")

    source = beside.source([Control(Broken(controlnet), condition(), 2)], step_count=4)
    source.ask(0, inputs(1, 500.0))
    assert came.wait(60.0)

    with pytest.raises(Unavailable, match="gone"):
        source.take(0)


def random_image(width: int, height: int) -> Image.Image:
    values = np.random.default_rng(1).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


@pytest.mark.parametrize("size", [(32, 32), (50, 20)])
def test_decode_condition_has_size_and_range_of_diffusers(size: tuple[int, int]) -> None:
    image = random_image(*size)
    theirs = VaeImageProcessor(vae_scale_factor=4, do_convert_rgb=True, do_normalize=False)

    told = decode_condition(png_of(image), "conditioning_image", width_px=32, height_px=24)
    grey = decode_condition(png_of(image.convert("L")), "conditioning_image", 32, 32)

    assert torch.equal(told, theirs.preprocess(image, height=24, width=32))
    assert grey.shape == (1, 3, 32, 32)
    assert torch.equal(grey[:, 0], grey[:, 2])
    with pytest.raises(InvalidArgument, match=r"controlnets\[0\]\.conditioning_image"):
        decode_condition(png_of(image)[:200], "controlnets[0].conditioning_image", 32, 32)


def test_condition_of_unets_is_the_pixels(unet_model: DiffusionModel) -> None:
    pixels = torch.rand(1, 3, 32, 32)

    assert torch.equal(unet_model.condition(pixels, 2, torch.Generator(), unshifted=False), pixels)


@torch.inference_mode()
def test_condition_of_flow_is_noisy_latent_per_row_with_optional_shift(
    flow_model: DiffusionModel,
) -> None:
    pixels = torch.rand(1, 3, 32, 32)
    with_shift, without = (
        flow_model.condition(pixels, 2, torch.Generator().manual_seed(1), unshifted=unshifted)
        for unshifted in (False, True)
    )

    assert with_shift.shape == (2, 8, 8, 8)
    assert not torch.equal(with_shift[0], with_shift[1])
    torch.testing.assert_close(without - with_shift, torch.full_like(without, 1.5305 * 0.0609))


@torch.inference_mode()
def test_condition_is_embedded_once_per_row(controlnet: ControlNet, flow_controlnet: ControlNet) -> None:
    pixels, latents = torch.rand(1, 3, 32, 32), torch.rand(2, 8, 8, 8)

    embedded = controlnet.embed(pixels, row_count=2)

    assert torch.equal(embedded, controlnet.embed(torch.cat([pixels, pixels])))
    assert controlnet.embed(pixels).shape[0] == 1
    assert flow_controlnet.embed(latents, row_count=2).shape == (2, 16, 16)
