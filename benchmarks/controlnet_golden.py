"""Compare controlled images with diffusers' ControlNet pipelines: same weights, conditions, seed and scheduler,
float32.

    python -m benchmarks.controlnet_golden

Ours: the step engine, with the ControlNets on a second thread; each image alone, and all of a model's images submitted
together, so that they share forward passes with images that get residuals earlier, later or never. Theirs: the
family's ControlNet pipeline in this process. Models: tiny-heavy with the zoo's two ControlNets, given edges and layouts
of drawn scenes, and tiny random models of Stable Diffusion, SDXL and SD3. Cases: one and several ControlNets; both
halves of guidance, the conditional half only, and no guidance; shares of the schedule. The figure is the largest
absolute difference of any element of the final latents.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lab.fixtures.checkpoints import (
    SIDE_PX,
    write_checkpoint,
    write_controlnet,
    write_flow_checkpoint,
    write_flow_controlnet,
    write_xl_checkpoint,
)
from lab.fixtures.controlled_generation import ControlledByDiffusers, ControlledByEngine, ControlledCase, conditions_for
from lab.fixtures.diffusers_reference import Case
from lab.runs.measure import Figure, Notes, Options, at_most, measured, parse_options, publish
from pentimento.diffusion.controlnets import ControlSetting
from pentimento.domain.generation import Scheduler
from zoo.drawing.conditions import as_rgb_condition
from zoo.painting.samples import conditions_of, example_scenes
from zoo.registry import WEIGHTS

TARGET = at_most(1e-4)
PROMPTS = (("a red circle above a blue square", ""), ("three small green stars", "blurred"))
EVERYWHERE = ControlSetting()
EARLY = ControlSetting(scale=0.7, end_fraction=0.5)
LATE = ControlSetting(scale=1.3, start_fraction=0.4)
MIDDLE = ControlSetting(scale=0.5, start_fraction=0.2, end_fraction=0.8)
ONE = ((EVERYWHERE,), (MIDDLE,))
SEVERAL = (EARLY, LATE, MIDDLE)


@dataclass(frozen=True)
class ControlledSubject:
    """Describe a model, its ControlNets, and the control image of each."""

    model: Path
    controlnets: list[Path]
    conditions: list[Tensor]


@dataclass(frozen=True)
class ComparedImage:
    """Store one image's difference from diffusers', alone and among others; None if diffusers' is not finite."""

    subject: str
    alone: float | None
    among_others: float | None


def zoo(folder: Path) -> ControlledSubject:
    names = ["tiny-controlnet-edges", "tiny-controlnet-layout"]
    told = [as_rgb_condition(conditions_of(name, example_scenes(1))).contiguous() for name in names]
    return ControlledSubject(WEIGHTS / "tiny-heavy", [WEIGHTS / name for name in names], told)


def random_sd(folder: Path) -> ControlledSubject:
    model = write_checkpoint(folder / "model", beta_schedule="scaled_linear", vae="kl")
    return _random(model, [write_controlnet(folder / str(seed), seed=seed) for seed in range(3)])


def random_sdxl(folder: Path) -> ControlledSubject:
    model = write_xl_checkpoint(folder / "model", beta_schedule="scaled_linear")
    return _random(model, [write_controlnet(folder / str(seed), xl=True, seed=seed) for seed in range(3)])


def random_sd3(folder: Path) -> ControlledSubject:
    model = write_flow_checkpoint(folder / "model", max_sequence_length=0)
    return _random(model, [write_flow_controlnet(folder / str(seed), seed=seed) for seed in range(3)])


def random_sd3_with_pooled_texts(folder: Path) -> ControlledSubject:
    model = write_flow_checkpoint(folder / "model", t5=True, max_sequence_length=12, dual_layers=(0,))
    own = {"num_layers": 2, "force_zeros_for_pooled_projection": False}
    return _random(model, [write_flow_controlnet(folder / str(seed), seed=seed, **own) for seed in range(3)])


def _random(model: Path, controlnets: list[Path]) -> ControlledSubject:
    return ControlledSubject(model, controlnets, conditions_for(len(controlnets), SIDE_PX, SIDE_PX))


SUBJECTS: dict[str, Callable[[Path], ControlledSubject]] = {
    "tiny-heavy, edges and layout": zoo,
    "random-sd": random_sd,
    "random-sdxl": random_sdxl,
    "random-sd3": random_sd3,
    "random-sd3, pooled texts": random_sd3_with_pooled_texts,
}


def all_cases(schedulers: Sequence[Scheduler], most: int, quick: bool) -> Iterator[ControlledCase]:
    """Yield every scheduler under one ControlNet and under `most`, also in shares of the schedule; the first scheduler
    also without and with strong guidance."""
    steps = 4 if quick else 10
    for scheduler in schedulers[:1] if quick else schedulers:
        for seed, settings in enumerate([*ONE, SEVERAL[:most]]):
            yield ControlledCase(Case(*PROMPTS[seed % 2], scheduler, seed, steps, 3.0), settings)
    for guidance in (1.0, 7.5):
        yield ControlledCase(Case(*PROMPTS[0], schedulers[0], 11, steps, guidance), SEVERAL[:most])


def compare(name: str, subject: ControlledSubject, quick: bool) -> Iterator[ComparedImage]:
    """Yield each image's differences."""
    with ExitStack() as open_ones:
        engine = open_ones.enter_context(engine_of(subject))
        theirs = ControlledByDiffusers(subject.model, subject.controlnets)
        cases = list(all_cases(engine.model.info.schedulers, len(subject.controlnets), quick))
        images = [(case, subject.conditions[: len(case.settings)]) for case in cases]
        together = engine.together(images)
        for (case, conditions), among in zip(images, together, strict=True):
            wanted = theirs.controlled(case, conditions)
            alone = engine.controlled(case, conditions)
            yield ComparedImage(name, largest(wanted, alone), largest(wanted, among))


@contextmanager
def engine_of(subject: ControlledSubject) -> Iterator[ControlledByEngine]:
    engine = ControlledByEngine(subject.model, subject.controlnets)
    try:
        yield engine
    finally:
        engine.close()


def largest(wanted: Tensor, found: Tensor) -> float | None:
    return float((wanted - found).abs().max()) if torch.isfinite(wanted).all() else None


def figures_of(compared: Sequence[ComparedImage]) -> list[Figure]:
    """Return the figures over all models first, then by model."""
    finite = [(one, one.alone, one.among_others) for one in compared if one.alone is not None]
    alone = [value for _, value, _ in finite]
    among = [value for _, _, value in finite if value is not None]
    figures = [
        measured("max abs difference of the final latents, pictures alone", alone, max, TARGET),
        measured("max abs difference of the final latents, pictures that share passes", among, max, TARGET),
    ]
    for name in dict.fromkeys(one.subject for one in compared):
        own = [value for one, value, _ in finite if one.subject == name]
        figures.append(measured(f"{name}, pictures alone", own, max, TARGET))
    return figures


def main() -> int:
    options: Options = parse_options("controlnet_golden", __doc__)
    torch.set_num_threads(1)
    compared: list[ComparedImage] = []
    for name, write in SUBJECTS.items():
        with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
            compared += compare(name, write(Path(folder)), options.quick)
    not_finite = sum(one.alone is None for one in compared)
    notes: Notes = {"dtype": "float32", "threads": 1, "not_finite_in_diffusers": not_finite}
    return publish(options, figures_of(compared), notes=notes)


if __name__ == "__main__":
    raise SystemExit(main())
