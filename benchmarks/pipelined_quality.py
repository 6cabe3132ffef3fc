"""Compare pipelined images with synchronous ones of the same seed, and those with another seed's: attribute scores,
edges, SSIM. A worker and a replica of controlnet_svc generate them, as served.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.image_distances import structural_similarity
from benchmarks.zoo_curves.setting import figure
from lab.fixtures.controlled_generation import ControlledCase
from lab.fixtures.controlnet_serving import ControlledByService, controlled_by_service
from lab.fixtures.diffusers_reference import Case
from lab.runs.measure import Figure, Target, at_least, at_most, informative
from lab.runs.parts import PartResult
from pentimento.diffusion.controlnets import ControlSetting
from pentimento.diffusion.families import load_model
from pentimento.domain.adapters import AdapterKind
from pentimento.domain.generation import Scheduler
from pentimento.policies.residual_pipelining import allowed_from_step, first_alike_step
from pentimento.profiles.catalogue import read_profiles
from pentimento.profiles.document import (
    MeasuredAdapter,
    Profile,
    ProfileConditions,
    ProfiledModel,
    ProfileKind,
    ProfileRow,
    profiles_to_json,
)
from zoo.drawing.conditions import as_rgb_condition, edge_f1, edges, layout
from zoo.drawing.prompts import Prompts, examination_prompts
from zoo.evaluate.estimates import Array, estimate, mean, mean_difference
from zoo.evaluate.examination import Examiner
from zoo.painting.controlnet import add_control, adjacent_cosines, generate_controlled, recorded_residuals
from zoo.painting.pipeline import load_pipeline
from zoo.painting.store import as_bytes
from zoo.registry import WEIGHTS, entry_of

BASE = "tiny-heavy"
BOUNDS = WEIGHTS / "pipelining-bounds.json"
TOLD: dict[str, Callable[[Prompts], Tensor]] = {
    "edges": lambda prompts: edges(prompts.drawn.float() / 255.0),
    "layout": lambda prompts: layout(prompts.scenes),
}
# the share of prompts with less similar residuals, at which a step is decided
LEAST_ALIKE = 0.1
AT_ONCE = 4


@dataclass(frozen=True)
class QualitySetting:
    """Set the prompts and steps.

    `prompt_count` prompts with unseen combinations; bounds are measured on `bound_prompts` others, for each number of
    `bound_steps`. `scorer` is the work folder of the trained attribute scorer.
    """

    scorer: Path
    prompt_count: int
    bound_prompts: int
    bound_steps: tuple[int, ...]
    steps: int
    bounds: Path = BOUNDS


def bounds_part(setting: QualitySetting) -> PartResult:
    """Find the first step with residuals like those of the step before, and write its file."""
    # after the prompts that quality is measured on
    prompts = examination_prompts(setting.bound_prompts, first=setting.prompt_count)
    found, figures = [], []
    for name, told in TOLD.items():
        rows = []
        for steps in setting.bound_steps:
            cosines = _adjacent_cosines(name, told(prompts), prompts, steps)
            by_step = np.quantile(cosines, LEAST_ALIKE, axis=1)
            first = first_alike_step(by_step.tolist())
            rows.append(ProfileRow({"step_count": steps, "first_step": first}))
            told_name = f"bounds: {name}, first step of {steps} from which adjacent residuals stay alike"
            figures.append(Figure(told_name, first, informative("steps"), len(by_step)))
        found.append(_profile(name, setting.bound_steps, rows))
    setting.bounds.write_text(profiles_to_json(*found))
    return PartResult(figures, {"prompts": setting.bound_prompts})


def _profile(name: str, step_counts: Sequence[int], rows: Sequence[ProfileRow]) -> Profile:
    entry = entry_of(f"tiny-controlnet-{name}", WEIGHTS)
    net = MeasuredAdapter(entry["digest"], kind=AdapterKind.CONTROLNET, name=entry["name"])
    of = ProfiledModel(BASE, entry_of(BASE, WEIGHTS)["digest"], adapters=(net,))
    return Profile(ProfileKind.PIPELINING, of, ProfileConditions(max(step_counts)), rows=tuple(rows))


def _adjacent_cosines(name: str, conditions: Tensor, prompts: Prompts, steps: int) -> Array:
    """Return cosines (steps - 1, prompts), in the conditional half."""
    pipeline = add_control(load_pipeline(WEIGHTS / BASE), WEIGHTS / f"tiny-controlnet-{name}")
    scale, count = float(entry_of(BASE, WEIGHTS)["default_guidance_scale"]), len(prompts)
    with recorded_residuals(pipeline.controlnet) as residuals:
        generate_controlled(pipeline, list(prompts.captions), list(range(count)), conditions, steps, scale)
    found: Array = adjacent_cosines(residuals)[:, count:].double().numpy()
    return found


def quality_part(setting: QualitySetting, name: str) -> PartResult:
    """Generate all prompts in both modes with one seed, and synchronously with another, and compare them."""
    prompts = examination_prompts(setting.prompt_count)
    conditions = TOLD[name](prompts)
    first = _from_step(setting, name)
    if not first:
        return PartResult(missing=f"{name} is never pipelined in {setting.steps} steps")
    synchronous, pipelined, other = asyncio.run(_generated(setting, name, prompts, conditions, first))
    examiner = Examiner(WEIGHTS, setting.scorer)
    figures: list[Figure] = []
    for metric, of in _metrics(examiner, prompts, conditions if name == "edges" else None).items():
        figures += compared(f"{name}: {metric}", of(synchronous), of(pipelined), of(other))
    figures += _alike(name, synchronous, pipelined, other)
    return PartResult(figures, {"prompts": len(prompts), "steps": setting.steps, "pipelined_from_step": first})


def _from_step(setting: QualitySetting, name: str) -> int:
    digest = entry_of(f"tiny-controlnet-{name}", WEIGHTS)["digest"]
    model_digest = entry_of("tiny-heavy", WEIGHTS)["digest"]
    return allowed_from_step(read_profiles([setting.bounds]).pipelining(model_digest, digest), setting.steps)


def _metrics(examiner: Examiner, prompts: Prompts, told: Tensor | None) -> dict[str, Callable[[Tensor], Array]]:
    """Return metrics by name, each of uint8 images (prompts, 3, height, width): (prompts, 1)."""

    def marks(images: Tensor, which: str) -> Array:
        found: Array = getattr(examiner.mark(images[:, None], prompts.captions, prompts.asked), which)
        return found

    metrics: dict[str, Callable[[Tensor], Array]] = {
        "share of attributes": lambda images: marks(images, "score"),
        "judge's log-likelihood": lambda images: marks(images, "log_likelihood"),
        "CLIPScore": lambda images: marks(images, "clip_score"),
    }
    if told is not None:
        metrics["edge F1"] = lambda images: np.asarray(edge_f1(edges(images.float() / 255.0), told).double().numpy())[
            :, None
        ]
    return metrics


def compared(name: str, synchronous: Array, pipelined: Array, other: Array) -> Iterator[Figure]:
    """Report both forms of "no loss beyond noise": a loss beyond the paired bootstrap, and a loss beyond the difference
    of two seeds. Values are (prompts, 1), of the same prompts."""
    difference = estimate(mean_difference, pipelined, synchronous)
    seeds = estimate(mean_difference, other, synchronous)
    yield figure(f"{name}, synchronous", estimate(mean, synchronous), informative(), len(synchronous))
    yield figure(f"{name}, pipelined minus synchronous", difference, informative())
    yield figure(f"{name}, another seed minus synchronous", seeds, informative())
    sure = max(0.0, -difference.high)
    yield Figure(f"{name}, loss beyond the paired bootstrap", round(sure, 5), at_most(0.0))
    noise = max(abs(seeds.low), abs(seeds.high))
    beyond = max(0.0, -difference.value - noise)
    yield Figure(f"{name}, loss beyond what seeds differ by", round(beyond, 5), at_most(0.0))


def _alike(name: str, synchronous: Tensor, pipelined: Tensor, other: Tensor) -> Iterator[Figure]:
    one, two, three = (images.float() / 255.0 for images in (synchronous, pipelined, other))
    modes = structural_similarity(one, two).numpy()[:, None]
    seeds = structural_similarity(one, three).numpy()[:, None]
    between = estimate(mean, seeds)
    target: Target = at_least(round(between.value, 5))
    yield figure(f"{name}: SSIM of synchronous and pipelined, one seed", estimate(mean, modes), target, len(modes))
    yield figure(f"{name}: SSIM of two seeds, synchronous", between, informative(), len(seeds))


async def _generated(
    setting: QualitySetting, name: str, prompts: Prompts, conditions: Tensor, first: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return synchronous, pipelined, and other-seed synchronous images: uint8 (prompts, 3, height, width)."""
    told = as_rgb_condition(conditions)
    model = load_model(WEIGHTS / BASE, torch.device("cpu"), torch.float32)

    def pixels(latents: Sequence[Tensor]) -> Tensor:
        with torch.inference_mode():
            shown = [model.decode_latent(latent) for latent in latents]
        return as_bytes(torch.cat(shown) / 2.0 + 0.5)

    async with controlled_by_service(WEIGHTS / BASE, [WEIGHTS / f"tiny-controlnet-{name}"]) as served:
        arms = []
        for seed, pipelined_from in ((0, 0), (0, first), (1, 0)):
            cases = [
                _case(setting, caption, 2 * number + seed, pipelined_from)
                for number, caption in enumerate(prompts.captions)
            ]
            arms.append(pixels(await _several(served, cases, told)))
            print(f"{name}: {len(cases)} images", flush=True)
    return arms[0], arms[1], arms[2]


def _case(setting: QualitySetting, caption: str, seed: int, pipelined_from: int) -> ControlledCase:
    scale = float(entry_of(BASE, WEIGHTS)["default_guidance_scale"])
    case = Case(caption, "", Scheduler.DDIM, seed, setting.steps, scale)
    return ControlledCase(case, (ControlSetting(),), pipelined_from)


async def _several(served: ControlledByService, cases: Sequence[ControlledCase], told: Tensor) -> list[Tensor]:
    places = asyncio.Semaphore(AT_ONCE)

    async def one(case: ControlledCase, condition: Tensor) -> Tensor:
        async with places:
            return await served.controlled(case, [condition[None]])

    return list(await asyncio.gather(*(one(case, condition) for case, condition in zip(cases, told, strict=True))))
