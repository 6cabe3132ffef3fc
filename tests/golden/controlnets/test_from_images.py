"""Compare ControlNet images that start from an image, whole or under a mask, with diffusers' pipelines for img2img and
inpainting, at several shares of the remaining steps."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from torch import Tensor

from lab.fixtures.checkpoints import SIDE_PX, write_checkpoint, write_controlnet, write_xl_checkpoint
from lab.fixtures.controlled_generation import ControlledByEngine, ControlledCase, conditions_for
from lab.fixtures.diffusers_reference import Case, DiffusersReference, _tensor_of, mask_image
from lab.fixtures.latent_listener import generated_together
from lab.fixtures.worker_under_test import noise_image, png_of
from pentimento.diffusion.controlnets import ControlSetting
from pentimento.diffusion.denoising import ImageStart
from pentimento.diffusion.images import decode_mask, decode_pixels
from pentimento.diffusion.schedulers import DIFFUSION_SCHEDULERS, first_img2img_step
from pentimento.domain.generation import NoiseForm
from tests.support.torch_threads import one_thread  # noqa: F401 (a fixture of this module)

IMAGE, MASK = noise_image(SIDE_PX, SIDE_PX), mask_image(SIDE_PX, SIDE_PX)
SETTINGS = (ControlSetting(scale=0.7), ControlSetting(0.6, start_fraction=0.3, end_fraction=0.7))
STEPS = 7


@dataclass(frozen=True)
class ImageKind:
    """Describe a model: its writer, whether its ControlNets are XL, and diffusers' pipelines from an image and under a
    mask."""

    write: Callable[[Path], Path]
    xl: bool
    from_image: str
    masked: str


KINDS = {
    "sd": ImageKind(
        partial(write_checkpoint, vae="kl"),
        False,
        "StableDiffusionControlNetImg2ImgPipeline",
        "StableDiffusionControlNetInpaintPipeline",
    ),
    "sdxl": ImageKind(
        write_xl_checkpoint,
        True,
        "StableDiffusionXLControlNetImg2ImgPipeline",
        "StableDiffusionXLControlNetInpaintPipeline",
    ),
    "sd that sees masks": ImageKind(
        partial(write_checkpoint, sees_mask=True), False, "", "StableDiffusionControlNetInpaintPipeline"
    ),
}


class ImageSides:
    """Hold diffusers and the engine, with the same model and ControlNets."""

    def __init__(self, kind: ImageKind, folder: Path) -> None:
        self.kind = kind
        model = kind.write(folder / "model")
        paths = [write_controlnet(folder / f"control-{seed}", xl=kind.xl, seed=seed) for seed in range(2)]
        self.engine = ControlledByEngine(model, paths)
        self._reference = DiffusersReference(model)
        self._networks = [diffusers.ControlNetModel.from_pretrained(path) for path in paths]

    def difference(self, case: Case, settings: Sequence[ControlSetting]) -> float:
        conditions = conditions_for(len(settings), SIDE_PX, SIDE_PX)
        return float((self._theirs(case, settings, conditions) - self._ours(case, settings, conditions)).abs().max())

    @torch.inference_mode()
    def _ours(self, case: Case, settings: Sequence[ControlSetting], conditions: Sequence[Tensor]) -> Tensor:
        assert case.strength is not None
        pixels = decode_pixels(png_of(IMAGE), "image", SIDE_PX, SIDE_PX)
        mask = decode_mask(png_of(MASK), "mask", SIDE_PX, SIDE_PX) if case.masked else None
        first = first_img2img_step(case.steps, case.strength, NoiseForm.VARIANCE_PRESERVING, case.scheduler)
        start = ImageStart(pixels, first, mask, from_noise=case.masked and case.strength == 1.0)
        acting = tuple(setting.over_steps_from(first, case.steps) for setting in settings)
        request = self.engine.request(ControlledCase(case, acting), conditions)
        return generated_together(self.engine._engine, [replace(request, start=start)])[0]

    def _theirs(self, case: Case, settings: Sequence[ControlSetting], conditions: Sequence[Tensor]) -> Tensor:
        many = len(settings) > 1
        networks, scales = self._networks[: len(settings)], [setting.scale for setting in settings]
        shares = [(setting.start_fraction, setting.end_fraction) for setting in settings]
        starts, ends = map(list, zip(*shares, strict=True))
        extra: dict[str, Any] = {"mask_image": MASK, "height": SIDE_PX, "width": SIDE_PX} if case.masked else {}
        latents: Tensor = self._pipeline(case, networks if many else networks[0])(
            case.prompt,
            negative_prompt=case.negative_prompt or None,
            image=_tensor_of(IMAGE),
            control_image=list(conditions) if many else conditions[0],
            strength=case.strength,
            num_inference_steps=case.reference_steps,
            guidance_scale=case.guidance_scale,
            generator=torch.Generator().manual_seed(case.seed),
            controlnet_conditioning_scale=scales if many else scales[0],
            control_guidance_start=starts if many else starts[0],
            control_guidance_end=ends if many else ends[0],
            guess_mode=False,
            output_type="latent",
            **extra,
        ).images
        return latents

    def _pipeline(self, case: Case, controlnet: Any) -> Any:
        kind = getattr(diffusers, self.kind.masked if case.masked else self.kind.from_image)
        taken = inspect.signature(kind.__init__).parameters
        parts = {**self._reference.pipeline(case).components, **self._reference._settings, "controlnet": controlnet}
        pipeline = kind(**{name: part for name, part in parts.items() if name in taken})
        pipeline.set_progress_bar_config(disable=True)
        return pipeline


# diffusers' pipelines for networks with mask inputs generate under masks only.
GENERATED = [(name, masked) for name, kind in KINDS.items() for masked in (False, True) if masked or kind.from_image]


@pytest.fixture(scope="module", params=GENERATED, ids=lambda one: f"{one[0]}, {'masked' if one[1] else 'whole'}")
def generated(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ImageSides, bool]]:
    """Return both sides, and whether images are masked."""
    name, masked = request.param
    sides = ImageSides(KINDS[name], tmp_path_factory.mktemp("images"))
    yield sides, masked
    sides.engine.close()


@pytest.mark.parametrize(("settings", "strength"), [(SETTINGS[1:], 0.5), (SETTINGS, 1.0)], ids=["window", "both"])
def test_controlled_image_to_image_equals_diffusers(
    generated: tuple[ImageSides, bool], strength: float, settings: tuple[ControlSetting, ...]
) -> None:
    sides, masked = generated

    differences = {
        scheduler: sides.difference(
            Case("a red circle", "blurred", scheduler, seed=3, steps=STEPS, strength=strength, masked=masked), settings
        )
        for scheduler in sides.engine.model.info.schedulers
    }

    assert len(differences) == len(DIFFUSION_SCHEDULERS)
    assert all(value <= 1e-4 for value in differences.values()), differences
