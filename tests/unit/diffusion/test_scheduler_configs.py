"""Scheduler configurations by sampler, and steps and guidance of requests that name none."""

import inspect
import json
from pathlib import Path
from typing import Any

import diffusers
import pytest

from pentimento.diffusion.model_registry import UsualSettings, usual_settings
from pentimento.diffusion.schedulers import (
    DIFFUSION_SCHEDULERS,
    FLOW_SAMPLERS,
    FLOW_SCHEDULERS,
    UnsupportedConfig,
    scheduler_config,
    scheduler_configs,
)
from pentimento.diffusion.schedulers.keys import WITHOUT_EFFECT, acted_on
from pentimento.domain.generation import Scheduler
from tests.support.refusals import wrong_refusals

EULER, ANCESTRAL, DPM = Scheduler.EULER, Scheduler.EULER_ANCESTRAL, Scheduler.DPM_SOLVER_PP_2M
FLOW, SDE = Scheduler.FLOW_MATCH_EULER, Scheduler.DPM_SOLVER_PP_2M_SDE
FLOW_DPM = Scheduler.FLOW_DPM_SOLVER_PP_2M
CLASSES: dict[Scheduler, Any] = {
    Scheduler.DDIM: diffusers.DDIMScheduler,
    EULER: diffusers.EulerDiscreteScheduler,
    ANCESTRAL: diffusers.EulerAncestralDiscreteScheduler,
    DPM: diffusers.DPMSolverMultistepScheduler,
    FLOW: diffusers.FlowMatchEulerDiscreteScheduler,
    SDE: diffusers.DPMSolverMultistepScheduler,
    Scheduler.UNI_PC: diffusers.UniPCMultistepScheduler,
    Scheduler.DEIS: diffusers.DEISMultistepScheduler,
    Scheduler.LCM: diffusers.LCMScheduler,
    Scheduler.TCD: diffusers.TCDScheduler,
    Scheduler.HEUN: diffusers.HeunDiscreteScheduler,
    FLOW_DPM: diffusers.DPMSolverMultistepScheduler,
    Scheduler.SCM: diffusers.SCMScheduler,
}
# Schedulers that write keys which the samplers here do not take.
WRITERS: dict[str, dict[str, Any]] = {
    "UniPCMultistepScheduler": {"beta_schedule": "scaled_linear"},
    "LCMScheduler": {"original_inference_steps": 25},
    "TCDScheduler": {"beta_start": 0.001},
    "HeunDiscreteScheduler": {},
}
# EDM's classes know no spacing of timesteps.
EDM = {"sigma_min": 0.002, "sigma_max": 80.0, "sigma_data": 0.5, "sigma_schedule": "karras", "rho": 7.0}


NOT_IMPLEMENTED: list[tuple[Scheduler, str, Any]] = [
    (Scheduler.DDIM, "thresholding", True),
    (EULER, "final_sigmas_type", "none"),
    (ANCESTRAL, "prediction_type", "sample"),
    (Scheduler.UNI_PC, "solver_type", "bh1"),
    (Scheduler.UNI_PC, "disable_corrector", [0]),
    (Scheduler.LCM, "original_inference_steps", 1001),
    (DPM, "solver_order", 3),
    (DPM, "solver_type", "rk4"),
    (DPM, "lambda_min_clipped", -5.1),
    (DPM, "variance_type", "learned_range"),
    (FLOW_DPM, "use_flow_sigmas", False),
    (FLOW_DPM, "flow_shift", 0.0),
    (Scheduler.SCM, "prediction_type", "epsilon"),
    (FLOW, "shift_terminal", 1.0),
    (FLOW, "time_shift_type", "cubic"),
    (FLOW, "shift", 0.0),
    (FLOW, "shift", float("nan")),
]


def test_scheduler_config_rejects_unsupported_option_by_key() -> None:
    rows = [(scheduler, {key: value}, key) for scheduler, key, value in NOT_IMPLEMENTED]
    by_size: dict[str, Any] = {"use_dynamic_shifting": True}
    rows += [(FLOW, {**by_size, key: value}, key) for key, value in (("base_shift", 0.0), ("max_image_seq_len", 256))]
    rows += [(FLOW, {**by_size, "max_shift": None}, "of the wrong type")]

    assert wrong_refusals(UnsupportedConfig, scheduler_config, rows) == []


OF_OTHERS: list[tuple[Scheduler, str, Any]] = [
    (Scheduler.DDIM, "use_karras_sigmas", True),
    (ANCESTRAL, "final_sigmas_type", "sigma_min"),
    (EULER, "solver_order", 3),
    (DPM, "clip_sample", True),
    (FLOW, "sigma_max", 0.5),
    (EULER, "sigma_max", 80.0),
    (SDE, "solver_type", "bh1"),
    (Scheduler.DEIS, "solver_type", "bh2"),
    (Scheduler.UNI_PC, "solver_type", "heun"),
    (SDE, "some_new_key", 1),
]


def test_keys_of_other_samplers_change_nothing() -> None:
    for scheduler, key, value in OF_OTHERS:
        assert scheduler_config(scheduler, {key: value}) == scheduler_config(scheduler, {}), (scheduler, key)


def test_every_key_of_diffusers_classes_is_considered() -> None:
    for scheduler, reference in CLASSES.items():
        taken = set(inspect.signature(reference.__init__).parameters) - {"self"}

        assert taken - acted_on(scheduler) - WITHOUT_EFFECT == taken & {"variance_type"}, scheduler


@pytest.mark.parametrize("writer", WRITERS)
def test_leftover_keys_are_read_as_diffusers_reads_them(writer: str) -> None:
    stored = json.loads(getattr(diffusers, writer)(timestep_spacing="trailing", **WRITERS[writer]).to_json_string())
    for scheduler in DIFFUSION_SCHEDULERS:
        theirs = json.loads(CLASSES[scheduler].from_config(stored).to_json_string())
        taken = {key: theirs[key] for key in inspect.signature(CLASSES[scheduler].__init__).parameters if key in theirs}

        assert scheduler_config(scheduler, stored) == scheduler_config(scheduler, taken), scheduler


NEWER = [SDE, Scheduler.UNI_PC, Scheduler.DEIS, Scheduler.LCM, Scheduler.TCD, Scheduler.HEUN]
DPM_CLASS, FLOW_CLASS = "DPMSolverMultistepScheduler", "FlowMatchEulerDiscreteScheduler"


@pytest.mark.parametrize(
    ("name", "config", "family", "offered"),
    [
        # The checkpoint's own comes first.
        (DPM_CLASS, {"solver_type": "heun"}, DIFFUSION_SCHEDULERS, [DPM, Scheduler.DDIM, EULER, ANCESTRAL, *NEWER]),
        (
            DPM_CLASS,
            {"algorithm_type": "sde-dpmsolver++"},
            DIFFUSION_SCHEDULERS,
            [SDE, Scheduler.DDIM, EULER, ANCESTRAL, DPM, *(one for one in NEWER if one not in (SDE, Scheduler.DEIS))],
        ),
        ("DDIMScheduler", {"prediction_type": "sample"}, DIFFUSION_SCHEDULERS, [Scheduler.DDIM, EULER, DPM, *NEWER]),
        (FLOW_CLASS, {"shift": 3.0}, FLOW_SCHEDULERS, [FLOW]),
        (DPM_CLASS, {"use_flow_sigmas": True, "prediction_type": "flow_prediction"}, FLOW_SAMPLERS, [FLOW_DPM, FLOW]),
    ],
)
def test_scheduler_configs_offer_samplers_that_suit(
    name: str, config: dict[str, Any], family: Any, offered: list[Scheduler]
) -> None:
    assert list(scheduler_configs(name, config, family)) == offered


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (DPM_CLASS, {"algorithm_type": "dpmsolver"}, "algorithm_type"),
    (FLOW_CLASS, {}, repr(FLOW_CLASS)),
    (DPM_CLASS, {"use_flow_sigmas": True}, repr(DPM_CLASS)),
    ("ScoreSdeVeScheduler", {}, "'ScoreSdeVeScheduler'"),
    (DPM_CLASS, {"use_karras_sigmas": True, "use_beta_sigmas": True}, "use_karras_sigmas and use_beta_sigmas"),
    ("", {}, "''"),
    ("EulerDiscreteScheduler", {"sigma_max": 80.0, "use_karras_sigmas": True}, r"sigma_max=80\.0"),
]


def test_scheduler_configs_refuse_own_scheduler() -> None:
    rows = [(name, config, DIFFUSION_SCHEDULERS, named) for name, config, named in REFUSED]

    assert wrong_refusals(UnsupportedConfig, scheduler_configs, rows) == []


def test_scheduler_configs_of_edm_ignore_leftover_keys() -> None:
    configs = scheduler_configs("EulerDiscreteScheduler", {"beta_end": 0.01, **EDM}, DIFFUSION_SCHEDULERS)

    assert configs == scheduler_configs("EulerDiscreteScheduler", {"beta_end": 0.01}, DIFFUSION_SCHEDULERS)


PIPELINES = (
    "StableDiffusionPipeline",
    "StableDiffusionInpaintPipeline",
    "StableDiffusionXLPipeline",
    "StableDiffusionXLImg2ImgPipeline",
    "StableDiffusionXLInpaintPipeline",
    "StableDiffusion3Pipeline",
    "StableDiffusion3Img2ImgPipeline",
    "SanaPipeline",
    "SanaSprintPipeline",
    "Flux2Pipeline",
)
XL, SD3 = "StableDiffusionXLPipeline", "StableDiffusion3Pipeline"
EULER_CLASS, ANCESTRAL_CLASS = "EulerDiscreteScheduler", "EulerAncestralDiscreteScheduler"
FLOW_EULER = "FlowMatchEulerDiscreteScheduler"


def written(directory: Path, pipeline: str, unet: dict[str, Any] | None = None, **scheduler: Any) -> Path:
    for part, content in (("scheduler/scheduler_config", scheduler), ("unet/config", unet or {})):
        (directory / part).parent.mkdir(parents=True)
        (directory / f"{part}.json").write_text(json.dumps(content))
    (directory / "model_index.json").write_text(json.dumps({"_class_name": pipeline}))
    return directory


@pytest.mark.parametrize(("takes_scale", "usual"), [(True, (28, 3.5)), (False, (4, 0.0))])
def test_flux_defaults_equal_model_cards(takes_scale: bool, usual: tuple[int, float], tmp_path: Path) -> None:
    directory = written(tmp_path / "flux-lightning", "FluxPipeline")
    (directory / "transformer").mkdir()
    (directory / "transformer/config.json").write_text(json.dumps({"guidance_embeds": takes_scale}))

    found = usual_settings(directory)

    assert (found.steps, found.guidance_scale) == usual
    assert not found.is_guided(found.guidance_scale)


@pytest.mark.parametrize(("is_distilled", "usual"), [(True, (4, 1.0)), (False, (50, 4.0)), (None, (50, 4.0))])
def test_klein_defaults_equal_model_cards(is_distilled: bool | None, usual: tuple[int, float], tmp_path: Path) -> None:
    directory = written(tmp_path / "FLUX.2-klein-4B", "Flux2KleinPipeline")
    stated = {} if is_distilled is None else {"is_distilled": is_distilled}
    (directory / "model_index.json").write_text(json.dumps({"_class_name": "Flux2KleinPipeline", **stated}))

    found = usual_settings(directory)

    assert (found.steps, found.guidance_scale) == usual
    assert found.is_guided(found.guidance_scale) is not bool(is_distilled)


@pytest.mark.parametrize(("name", "usual"), [("z-image", (50, 5.0)), ("Z-Image-Turbo", (8, 0.0))])
def test_z_image_turbo_is_known_by_its_name(name: str, usual: tuple[int, float], tmp_path: Path) -> None:
    assert usual_settings(written(tmp_path / name, "ZImagePipeline")) == UsualSettings(*usual)


def test_family_defaults_equal_diffusers_pipelines(tmp_path: Path) -> None:
    for pipeline in PIPELINES:
        theirs = inspect.signature(getattr(diffusers, pipeline).__call__).parameters

        found = usual_settings(written(tmp_path / pipeline / "model", pipeline, timestep_spacing="trailing"))

        own = (theirs["num_inference_steps"].default, theirs["guidance_scale"].default)
        assert (found.steps, found.guidance_scale) == own, pipeline


DISTILLED: list[tuple[str, str, str, str | None, tuple[int, float]]] = [
    ("sd-turbo", "StableDiffusionPipeline", EULER_CLASS, "trailing", (1, 0.0)),
    ("stable-diffusion-3.5-large-turbo", SD3, FLOW_EULER, None, (4, 0.0)),
    ("SDXL-Lightning", XL, EULER_CLASS, "trailing", (4, 0.0)),
    ("sdxl_lightning_8step", XL, EULER_CLASS, "trailing", (8, 0.0)),
    ("Hyper-SDXL-1step-Unet", XL, EULER_CLASS, "trailing", (1, 0.0)),
    ("hyperrealism", XL, EULER_CLASS, "leading", (50, 5.0)),
    ("DreamShaperXL_v21TurboDPMSDE", XL, "DPMSolverMultistepScheduler", "leading", (8, 1.0)),
    ("dreamshaper-8-lcm", "StableDiffusionPipeline", EULER_CLASS, "leading", (4, 1.0)),
    ("anything", "StableDiffusionPipeline", "LCMScheduler", "leading", (4, 1.0)),
    ("elcmore", "StableDiffusionPipeline", EULER_CLASS, "leading", (50, 7.5)),
    ("sdxl-30-steps", XL, EULER_CLASS, "leading", (50, 5.0)),
]


def test_distilled_model_takes_few_steps_and_little_guidance(tmp_path: Path) -> None:
    for name, pipeline, scheduler, spacing, expected in DISTILLED:
        directory = written(tmp_path / name, pipeline, _class_name=scheduler, timestep_spacing=spacing)

        assert usual_settings(directory) == UsualSettings(*expected), name


def test_distilled_model_is_known_by_origin_and_hub_folder(tmp_path: Path) -> None:
    trailing: dict[str, Any] = {"_class_name": EULER_CLASS, "timestep_spacing": "trailing"}
    origin = written(tmp_path / "mine", XL, {"_name_or_path": "stabilityai/sdxl-turbo"}, **trailing)
    cached = written(tmp_path / "models--stabilityai--sdxl-turbo" / "snapshots" / "f4b0486b498f", XL, **trailing)

    assert [usual_settings(directory) for directory in (origin, cached)] == [UsualSettings(1, 0.0)] * 2
