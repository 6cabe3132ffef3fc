"""Steps and guidance of requests that name none, by what a checkpoint's files say."""

import inspect
import json
from pathlib import Path
from typing import Any

import diffusers
import pytest

from pentimento.diffusion.usual_settings import UsualSettings, usual_settings

PIPELINES = (
    "StableDiffusionPipeline",
    "StableDiffusionInpaintPipeline",
    "StableDiffusionXLPipeline",
    "StableDiffusionXLImg2ImgPipeline",
    "StableDiffusionXLInpaintPipeline",
    "StableDiffusion3Pipeline",
    "StableDiffusion3Img2ImgPipeline",
)
XL, FLOW = "StableDiffusionXLPipeline", "StableDiffusion3Pipeline"
EULER, ANCESTRAL = "EulerDiscreteScheduler", "EulerAncestralDiscreteScheduler"
FLOW_EULER = "FlowMatchEulerDiscreteScheduler"


def written(directory: Path, pipeline: str, unet: dict[str, Any] | None = None, **scheduler: Any) -> Path:
    for part, content in (("scheduler/scheduler_config", scheduler), ("unet/config", unet or {})):
        (directory / part).parent.mkdir(parents=True)
        (directory / f"{part}.json").write_text(json.dumps(content))
    (directory / "model_index.json").write_text(json.dumps({"_class_name": pipeline}))
    return directory


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_family_defaults_are_those_of_diffusers_pipelines(pipeline: str, tmp_path: Path) -> None:
    theirs = inspect.signature(getattr(diffusers, pipeline).__call__).parameters

    found = usual_settings(written(tmp_path / "model", pipeline, timestep_spacing="trailing"))

    assert found == UsualSettings(theirs["num_inference_steps"].default, theirs["guidance_scale"].default)


@pytest.mark.parametrize(
    ("name", "pipeline", "scheduler", "spacing", "expected"),
    [
        ("sd-turbo", "StableDiffusionPipeline", EULER, "trailing", (1, 0.0)),
        ("sdxl-turbo", XL, ANCESTRAL, "trailing", (1, 0.0)),
        ("stable-diffusion-3.5-large-turbo", FLOW, FLOW_EULER, None, (4, 0.0)),
        ("SDXL-Lightning", XL, EULER, "trailing", (4, 0.0)),
        ("sdxl_lightning_8step", XL, EULER, "trailing", (8, 0.0)),
        ("DreamShaperXL_v21TurboDPMSDE", XL, "DPMSolverMultistepScheduler", "leading", (8, 1.0)),
        ("dreamshaper-8-lcm", "StableDiffusionPipeline", EULER, "leading", (4, 1.0)),
        ("anything", "StableDiffusionPipeline", "LCMScheduler", "leading", (4, 1.0)),
        ("elcmore", "StableDiffusionPipeline", EULER, "leading", (50, 7.5)),
        ("sdxl-30-steps", XL, EULER, "leading", (50, 5.0)),
    ],
)
def test_distilled_model_takes_few_steps_and_little_guidance(
    name: str, pipeline: str, scheduler: str, spacing: str | None, expected: tuple[int, float], tmp_path: Path
) -> None:
    directory = written(tmp_path / name, pipeline, _class_name=scheduler, timestep_spacing=spacing)

    assert usual_settings(directory) == UsualSettings(*expected)


def test_distilled_model_is_known_by_origin_and_hub_folder(tmp_path: Path) -> None:
    trailing: dict[str, Any] = {"_class_name": EULER, "timestep_spacing": "trailing"}
    origin = written(tmp_path / "mine", XL, {"_name_or_path": "stabilityai/sdxl-turbo"}, **trailing)
    cached = written(tmp_path / "models--stabilityai--sdxl-turbo" / "snapshots" / "f4b0486b498f", XL, **trailing)

    assert [usual_settings(directory) for directory in (origin, cached)] == [UsualSettings(1, 0.0)] * 2
