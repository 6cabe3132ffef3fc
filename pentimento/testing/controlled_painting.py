"""A controlled picture twice: by diffusers' ControlNet pipelines, and by the step engine with ControlNets beside it."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pentimento.diffusion.controlnets import (
    PLAIN,
    Control,
    ControlNet,
    ControlNetForm,
    ControlSetting,
    LocalControlNets,
    load_controlnet,
)
from pentimento.diffusion.engine import EngineSettings, StepEngine
from pentimento.diffusion.families import DiffusionModel, is_guided, load_model
from pentimento.diffusion.painting import NoiseStart, PaintingRequest
from pentimento.domain.generation import GenerationSpec
from pentimento.testing.diffusers_reference import Case, DiffusersReference
from pentimento.testing.latent_listener import painted_together

_PIPELINES = {
    "StableDiffusionPipeline": "StableDiffusionControlNetPipeline",
    "StableDiffusionXLPipeline": "StableDiffusionXLControlNetPipeline",
    "StableDiffusion3Pipeline": "StableDiffusion3ControlNetPipeline",
}
_NETWORKS = {"StableDiffusion3Pipeline": "SD3ControlNetModel"}


@dataclass(frozen=True)
class ControlledCase:
    """A picture and how each of its ControlNets acts, by their place; `conditional_only` is one for all."""

    case: Case
    settings: tuple[ControlSetting, ...]
    # Through the service alone: from this step on residuals are a step old; 0 for never.
    pipelined_from_step: int = 0


def conditions_for(count: int, width_px: int, height_px: int) -> list[Tensor]:
    """Return what ControlNets are told: pixels (1, 3, height, width) in 0..1, of 256 levels."""
    generator = torch.Generator().manual_seed(4)
    shape = (1, 3, height_px, width_px)
    return [torch.randint(0, 256, shape, generator=generator).float() / 255.0 for _ in range(count)]


class ControlledByDiffusers(DiffusersReference):
    """diffusers' ControlNet pipeline of a model, float32."""

    def __init__(self, model: Path, controlnets: Sequence[Path], device: str = "cpu") -> None:
        super().__init__(model, device)
        import diffusers

        kind = self._index["_class_name"]
        network = getattr(diffusers, _NETWORKS.get(kind, "ControlNetModel"))
        self._networks = [network.from_pretrained(path, torch_dtype=torch.float32).to(device) for path in controlnets]
        self._controlled = getattr(diffusers, _PIPELINES[kind])
        self._is_flow = kind == "StableDiffusion3Pipeline"

    def controlled(self, controlled: ControlledCase, conditions: Sequence[Tensor]) -> Tensor:
        """Return the final latents (1, channels, height, width)."""
        case, settings = controlled.case, controlled.settings
        networks = self._networks[: len(settings)]
        many = len(networks) > 1
        told = [2.0 * pixels - 1.0 for pixels in conditions] if self._is_flow else list(conditions)
        # It draws the noise of encoded conditions from torch's own generator.
        torch.manual_seed(case.seed)
        latents: Tensor = self._controlled_pipeline(case, networks if many else networks[0])(
            case.prompt,
            negative_prompt=case.negative_prompt or None,
            height=conditions[0].shape[2],
            width=conditions[0].shape[3],
            num_inference_steps=case.steps,
            guidance_scale=case.guidance_scale,
            generator=torch.Generator().manual_seed(case.seed),
            output_type="latent",
            controlnet_conditioning_scale=_one_or_all([setting.scale for setting in settings]),
            control_guidance_start=_one_or_all([setting.start_fraction for setting in settings]),
            control_guidance_end=_one_or_all([setting.end_fraction for setting in settings]),
            **{"control_image" if self._is_flow else "image": told if many else told[0]},
            **({} if self._is_flow else {"guess_mode": settings[0].conditional_only}),
            **self._family_arguments(case),
        ).images
        return latents.cpu()

    def _controlled_pipeline(self, case: Case, controlnet: Any) -> Any:
        own = self.pipeline(case)
        taken = inspect.signature(self._controlled.__init__).parameters
        parts = {**own.components, **self._settings, "controlnet": controlnet}
        pipeline = self._controlled(**{name: part for name, part in parts.items() if name in taken})
        pipeline.set_progress_bar_config(disable=True)
        return pipeline


def _one_or_all(values: list[float]) -> Any:
    return values if len(values) > 1 else values[0]


class ControlledByEngine:
    """The step engine, with the ControlNets of its process beside it, which run in the `form`."""

    def __init__(
        self, model: Path, controlnets: Sequence[Path], device: str = "cpu", form: ControlNetForm = PLAIN
    ) -> None:
        place, dtype = torch.device(device), torch.float32
        self.model: DiffusionModel = load_model(model, place, dtype)
        self.networks: list[ControlNet] = [load_controlnet(path, place, dtype, form=form) for path in controlnets]
        self._engine = StepEngine(self.model, EngineSettings())
        self._engine.start()
        self._beside = LocalControlNets(self._engine.wake)

    def controlled(self, controlled: ControlledCase, conditions: Sequence[Tensor]) -> Tensor:
        """Return the final latents (1, channels, height, width). Raises what the picture fails with."""
        return self.together([(controlled, conditions)])[0]

    def together(self, pictures: Sequence[tuple[ControlledCase, Sequence[Tensor]]]) -> list[Tensor]:
        """Return the final latents of pictures that are submitted at once, and share what passes they can."""
        return painted_together(self._engine, (self.request(*picture) for picture in pictures))

    @torch.inference_mode()
    def request(self, controlled: ControlledCase, conditions: Sequence[Tensor]) -> PaintingRequest:
        """Return what the engine is asked."""
        case = controlled.case
        width, height = conditions[0].shape[3], conditions[0].shape[2]
        spec = GenerationSpec(
            case.prompt, case.negative_prompt, "tiny", width, height, case.steps, case.guidance_scale,
            case.scheduler, case.seed, case.eta,
        )  # fmt: skip
        generator = torch.Generator().manual_seed(case.seed)
        rows = 2 if is_guided(spec) else 1
        controls = [
            Control(
                network,
                self.model.condition(pixels, rows, generator, unshifted=network.info.unshifted),
                1 if setting.conditional_only else rows,
                setting,
            )
            for network, pixels, setting in zip(self.networks, conditions, controlled.settings, strict=False)
        ]
        return PaintingRequest(spec, NoiseStart(), control=self._beside.source(controls, case.steps))

    def close(self) -> None:
        """Stop both threads."""
        self._engine.close()
        self._beside.close()
