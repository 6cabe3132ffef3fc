"""Compare images with LoRAs with diffusers': same weights, files, seed and scheduler, float32.

    python -m benchmarks.lora_golden

Ours: the step engine, with the LoRAs patched into the weights if an image runs alone, and outside them if an image
without LoRAs shares its passes; and a running worker, with the same images over gRPC. Theirs: `load_lora_weights` and
`set_adapters` in this process, and `fuse_lora`. Patched images are compared with fused weights, others with PEFT's
layers. Models: tiny-heavy with the zoo's three LoRAs, singly and together, and tiny random ones of Stable Diffusion,
SDXL and SD3 with LoRAs of linear layers, convolutions and text encoders with alphas that differ from their ranks.

The figure is the largest absolute difference of any element of the final latents. It is also reported as a share of the
largest element, if that is above 1, since networks of random weights make latents of any size. A third reading compares
both with diffusers' pipeline with fused weights in double precision, from the same noise: if our error is no larger
than diffusers' in single precision, the difference between the two is rounding.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from lab.fixtures.checkpoints import write_checkpoint, write_flow_checkpoint, write_xl_checkpoint
from lab.fixtures.diffusers_reference import Case
from lab.fixtures.lora_files import EVERYWHERE, random_factors, write_diffusers_lora
from lab.fixtures.lora_reference import (
    WeightedFile,
    exact_latents_of_diffusers,
    latents_of_diffusers,
    latents_of_engine,
    read_set,
    spec_of_case,
)
from lab.fixtures.lora_serving import StyledWorker, styled_worker
from lab.runs.measure import at_most, informative, measured, parse_options, publish
from pentimento.diffusion.families import DiffusionModel, load_model
from pentimento.diffusion.loras import layers_of
from pentimento.domain.generation import Scheduler
from zoo.registry import WEIGHTS

PATCHED, BESIDE = at_most(1e-5), at_most(1e-4)
STYLES = (("neon",), ("blueprint",), ("mosaic",), ("neon", "mosaic"), ("neon", "blueprint", "mosaic"))
FAMILIES: dict[str, tuple[Callable[[Path], Path], Scheduler]] = {
    "random-sd": (partial(write_checkpoint, prediction_type="v_prediction"), Scheduler.DDIM),
    "random-sdxl": (write_xl_checkpoint, Scheduler.EULER),
    "random-sd3": (write_flow_checkpoint, Scheduler.FLOW_MATCH_EULER),
}


# as the zoo's LoRAs do
DENOISER_ALONE = "one that leaves text encoders alone"


@dataclass(frozen=True)
class StyledImage:
    """Store one image's differences from diffusers'."""

    subject: str
    patched: float
    beside: float
    served_alone: float
    served_beside: float
    largest_element: float
    our_error: float
    their_error: float

    def share(self, difference: float) -> float:
        return difference / max(1.0, self.largest_element)


def compare(
    name: str, checkpoint: Path, model: DiffusionModel, served: StyledWorker, files: Sequence[WeightedFile], case: Case
) -> StyledImage:
    spec, adapters = spec_of_case(model, case), read_set(model, files)
    (patched,) = latents_of_engine(model, [spec], [adapters])
    beside, _ = latents_of_engine(model, [spec, spec], [adapters, ()])
    fused = latents_of_diffusers(checkpoint, case, files, fused=True)
    layers = latents_of_diffusers(checkpoint, case, files, fused=False)
    exact = exact_latents_of_diffusers(checkpoint, case, files, fused)
    return StyledImage(
        name,
        patched=float((patched - fused).abs().max()),
        beside=float((beside - layers).abs().max()),
        served_alone=float((served.latents(case, files) - fused).abs().max()),
        served_beside=float((served.latents(case, files, beside_a_plain_one=True) - layers).abs().max()),
        largest_element=float(fused.abs().max()),
        our_error=float((patched - exact).abs().max()),
        their_error=float((fused - exact).abs().max()),
    )


def zoo_images(quick: bool) -> Iterator[StyledImage]:
    checkpoint = WEIGHTS / "tiny-heavy"
    model = load_model(checkpoint, torch.device("cpu"), torch.float32)
    case = Case("a red star at night", "", Scheduler.DDIM, steps=4 if quick else 20)
    files_of = {style: WEIGHTS / f"tiny-lora-{style}" / "pytorch_lora_weights.safetensors" for style in STYLES[-1]}
    with styled_worker(checkpoint, list(files_of.values())) as served:
        for styles in STYLES[:1] if quick else STYLES:
            files = [(files_of[style], 1 / len(styles)) for style in styles]
            yield compare(f"tiny-heavy, {' and '.join(styles)}", checkpoint, model, served, files, case)


def random_images(folder: Path, quick: bool) -> Iterator[StyledImage]:
    for name, (write, scheduler) in FAMILIES.items():
        checkpoint = write(folder / name)
        model = load_model(checkpoint, torch.device("cpu"), torch.float32)
        base = layers_of(model.info.family, model.adaptable)
        whole = random_factors(base, rank=3, seed=1, ends=(*EVERYWHERE, "add_k_proj", "proj"), size=0.1)
        part = random_factors(base, rank=4, seed=2, ends=("to_k", "conv2"), components=[base.denoiser], size=0.1)
        files: list[WeightedFile] = [
            (write_diffusers_lora(folder / f"{name}-whole", whole, alpha=5.0), 0.8),
            (write_diffusers_lora(folder / f"{name}-part", part, alpha=2.0), -0.5),
        ]
        case = Case("a red circle", "blurred", scheduler, seed=3, steps=4 if quick else 10)
        with styled_worker(checkpoint, [path for path, _ in files]) as served:
            yield compare(f"{name}, one", checkpoint, model, served, files[:1], case)
            yield compare(f"{name}, two", checkpoint, model, served, files, case)
            yield compare(f"{name}, {DENOISER_ALONE}", checkpoint, model, served, files[1:], case)


def _worst_ratio(errors: Sequence[tuple[float, float]]) -> float:
    return max(ours / theirs for ours, theirs in errors)


def main() -> int:
    options = parse_options("lora_golden", __doc__)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        compared = [*zoo_images(options.quick), *random_images(Path(folder), options.quick)]
    of_service = "by a running worker"
    figures = [
        measured("patched, against fuse_lora", [one.patched for one in compared], max, PATCHED),
        measured("beside the weights, against set_adapters", [one.beside for one in compared], max, BESIDE),
        measured("patched, as a share", [one.share(one.patched) for one in compared], max, PATCHED),
        measured("beside the weights, as a share", [one.share(one.beside) for one in compared], max, BESIDE),
        measured(f"alone, {of_service}", [one.served_alone for one in compared], max, PATCHED),
        measured(f"beside a plain one, {of_service}", [one.served_beside for one in compared], max, BESIDE),
        measured(f"alone, {of_service}, as a share", [one.share(one.served_alone) for one in compared], max, PATCHED),
        measured(
            f"beside a plain one, {of_service}, as a share",
            [one.share(one.served_beside) for one in compared],
            max,
            BESIDE,
        ),
    ]
    errors = [(one.our_error, one.their_error) for one in compared]
    alone = [one.patched for one in compared if one.subject.endswith(DENOISER_ALONE) or "tiny-heavy" in one.subject]
    figures += [
        # LoRAs of text encoders stay outside their weights, since prompts are cached; fuse_lora changes those weights
        # too.
        measured("patched, of LoRAs that leave text encoders alone", alone, max, informative()),
        measured("patched, from double precision", [ours for ours, _ in errors], max, informative()),
        measured("fuse_lora, from double precision", [theirs for _, theirs in errors], max, informative()),
        # in the image with our worst error relative to theirs
        measured("patched / fuse_lora, from double precision", errors, _worst_ratio, informative()),
    ]
    return publish(options, figures, notes={"dtype": "float32", "threads": 1})


if __name__ == "__main__":
    raise SystemExit(main())
