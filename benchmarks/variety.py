"""Compare how much eight seeds of one prompt differ with the cache and without it, with the compute saved and the
quality.

    python -m benchmarks.variety --scorer SCORERS [--prompts 8]

SCORERS is the work folder of a trained scorer (`benchmarks.image_scorers`). Prompts are a scene log's
(`zoo.scene_log`); each has one donor, generated from noise by another seed. Eight other seeds then start as the
gateway's rule decides (`policies.cache_selection`, the gateway's default settings) at several K: `tiny-heavy` from the
donor's latent, `tiny-light` from the image of `tiny-heavy`. The targets are those of the largest K of the shipped
profile; a larger K needs a bias. The same seeds are generated from noise, and at that K as stored: a latent resumed
as stored, an image noised to step K.

Variety is the mean distance of all pairs of the eight images, divided by that of the images from noise: 1 − SSIM, and
the distance of the scorer's features. A share from scratch (epsilon) mixes images from noise in: its variety is the
expected distance of a pair. Compute saved: denoising steps that the start skips, divided by K. Quality: attributes
that the scorer sees, and CLIPScore, divided by those of the images from noise.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from benchmarks.image_distances import structural_similarity
from benchmarks.image_scorers import pixels_of
from benchmarks.selector_profile import BATCH, shipped_table
from lab.runs.intervals import ratio_of_sums
from lab.runs.measure import Figure, at_least, informative, measured, parse_options, publish
from pentimento.diffusion.denoising import ImageStart, LatentStart, NoiseStart
from pentimento.diffusion.images import decode_pixels
from pentimento.diffusion.weights import quiet_loaders
from pentimento.domain.thinned_steps import bridge_steps
from pentimento.policies.cache_selection import Renoising, SelectionRules, renoising_of, skipped_steps
from pentimento.profiles.document import ReuseKind
from services.unet_worker.profiling.reuse import study_model
from services.unet_worker.profiling.reuse_study import StudyModel
from services.unet_worker.profiling.settings import StudyRunSettings
from services.vectordb_gateway.settings import SelectionSettings
from zoo.drawing.captions import UNSAID
from zoo.drawing.dataset import as_pixels
from zoo.evaluate.examination import Examiner
from zoo.registry import WEIGHTS
from zoo.scene_log import clip_embedder, write_scene_log
from zoo.train.parts import check_trained

SEEDS = 8
REQUIRED = 0.8
KEPT = 0.95
QUICK_PROMPTS = 6
DONOR_SEED = 1_000_000
# NIRVANA's K and 35, beyond which its new seeds change nothing (appendix C); steps of the light model's twelve.
LATENT_STEPS, IMAGE_STEPS = (5, 15, 25, 35), (3, 5, 7)
SCRATCH_SHARES = (0.05, 0.1)

_PAIRS = tuple(permutations(range(SEEDS), 2))
Start = NoiseStart | LatentStart | ImageStart


class StartOf(Protocol):
    """Return the start of a prompt's place at K = `step`, noised again."""

    def __call__(self, place: int, step: int, again: Renoising) -> Start: ...


@dataclass(frozen=True)
class Seen:
    """Hold eight images of each prompt, as pixels and as the scorer's features, and their quality, each (prompts,)."""

    pixels: Tensor
    features: Tensor
    attributes: Sequence[float]
    clip_scores: Sequence[float]

    def by_eye(self, other: "Seen") -> Tensor:
        """Return the mean 1 − SSIM of an image here with one of another seed there, (prompts,)."""
        found = [1.0 - structural_similarity(self.pixels[:, one], other.pixels[:, two]) for one, two in _PAIRS]
        return torch.stack(found).mean(dim=0)

    def by_scorer(self, other: "Seen") -> Tensor:
        """Return the mean distance of the features of an image here and one of another seed there, (prompts,)."""
        found = [(self.features[:, one] - other.features[:, two]).norm(dim=1) for one, two in _PAIRS]
        return torch.stack(found).mean(dim=0)


@dataclass(frozen=True)
class AskedPrompts:
    """Hold prompts; `asked` has a class index for each attribute."""

    texts: tuple[str, ...]
    asked: Tensor

    @property
    def of_images(self) -> tuple[str, ...]:
        """Return the prompt of each image, those of one prompt adjacent."""
        return tuple(text for text in self.texts for _ in range(SEEDS))


def prompts_of(count: int, seed: int) -> AskedPrompts:
    """Return `count` different prompts of a scene log."""
    log = write_scene_log(2 * count, clip_embedder(WEIGHTS / "tiny-clip"), np.random.default_rng(seed))
    rows = {text: row for row, text in reversed(list(enumerate(log.prompts)))}
    chosen = sorted(rows.values())[:count]
    return AskedPrompts(tuple(log.prompts[row] for row in chosen), torch.tensor([log.asked[row] for row in chosen]))


def generate(model: StudyModel, prompts: AskedPrompts, start_of: Callable[[int], Start]) -> list[bytes]:
    """Return the images of eight seeds of each prompt; `start_of` gives the start of a prompt's place."""
    requests = [
        model.request(text, place * SEEDS + seed, start_of(place))
        for place, text in enumerate(prompts.texts)
        for seed in range(SEEDS)
    ]
    return [made.png for made in model.generator.generate(requests)]


class Eyes:
    """Measure distances and quality of images."""

    def __init__(self, scorer_work: Path) -> None:
        check_trained(scorer_work, "judge", f"--work {scorer_work}")
        self._examiner = Examiner(WEIGHTS, scorer_work)

    def see(self, images: Sequence[bytes], prompts: AskedPrompts) -> Seen:
        """Measure the images of eight seeds of each prompt."""
        pixels = torch.stack([pixels_of(image) for image in images])
        with torch.no_grad():
            features = self._examiner.reader.body(as_pixels(pixels)).double()
        grouped = (pixels.double().div(255).unflatten(0, (-1, SEEDS)), features.unflatten(0, (-1, SEEDS)))
        wanted = prompts.asked.repeat_interleave(SEEDS, 0)
        marks = self._examiner.mark(pixels[:, None], prompts.of_images, wanted)
        right = torch.as_tensor(marks.right[:, 0]).sum(dim=1) / (wanted != UNSAID).sum(dim=1)
        scores = torch.as_tensor(marks.clip_score[:, 0])
        means = (values.unflatten(0, (-1, SEEDS)).double().mean(dim=1).tolist() for values in (right, scores))
        return Seen(*grouped, *means)


@dataclass(frozen=True)
class Kind:
    """Describe one kind of reuse: the model, the compared K of its steps, the largest that its profile allows, and its
    starts."""

    name: str
    model: StudyModel
    steps: tuple[int, ...]
    allowed: int
    start_of: StartOf


def kinds_of(prompts: AskedPrompts) -> Sequence[Kind]:
    """Return both kinds, over donors that `tiny-heavy` generates from noise."""
    denoising = StudyRunSettings(max_batch=BATCH)
    heavy, light = (study_model(WEIGHTS / name, denoising) for name in ("tiny-heavy", "tiny-light"))
    of_latents, of_images = _largest_step(ReuseKind.LATENTS, heavy), _largest_step(ReuseKind.IMAGES, light)
    requests = [
        replace(heavy.request(text, DONOR_SEED + place, NoiseStart()), capture_steps=frozenset(LATENT_STEPS))
        for place, text in enumerate(prompts.texts)
    ]
    donors = list(heavy.generator.generate(requests))
    side = heavy.spec.width_px
    pixels = [decode_pixels(donor.png, "donor", side, side) for donor in donors]

    def from_latent(place: int, step: int, again: Renoising) -> Start:
        return LatentStart(donors[place].latents[step], step - again.retaken_steps, _bridge(step, again))

    def from_image(place: int, step: int, again: Renoising) -> Start:
        return ImageStart(pixels[place], step - again.retaken_steps, bridge=_bridge(step, again))

    return (
        Kind("latents of tiny-heavy", heavy, LATENT_STEPS, of_latents, from_latent),
        Kind("images of tiny-heavy for tiny-light", light, IMAGE_STEPS, of_images, from_image),
    )


def _bridge(step: int, again: Renoising) -> tuple[int, ...]:
    return bridge_steps(step, again.renoised_steps, again.retaken_steps)


def _largest_step(kind: ReuseKind, model: StudyModel) -> int:
    """Return K of the model's steps: the most that its shipped profile allows at any similarity."""
    return max(skipped_steps(row, model.step_count) for row in shipped_table(kind, model.spec.model))


def figures_of(kind: Kind, prompts: AskedPrompts, eyes: Eyes, rules: SelectionRules) -> list[Figure]:
    """Return the figures of one kind: by K, as stored, and with a share from scratch."""

    def seen(start_of: Callable[[int], Start]) -> Seen:
        return eyes.see(generate(kind.model, prompts, start_of), prompts)

    noise = seen(lambda place: NoiseStart())
    stored = seen(lambda place: kind.start_of(place, kind.allowed, Renoising()))
    varied = {step: partial(kind.start_of, step=step, again=renoising_of(step, rules)) for step in kind.steps}
    by_step = {step: seen(start_of) for step, start_of in varied.items()}
    saved = 1 - renoising_of(kind.allowed, rules).retaken_steps / kind.allowed
    figures = [Figure(f"{kind.name}: steps saved ÷ those saved as stored", saved, at_least(REQUIRED))]
    for step in sorted(kind.steps, key=lambda step: step != kind.allowed):
        figures += _compared(f"{kind.name}, K = {step}", by_step[step], noise, holds=step == kind.allowed)
    figures += _compared(f"{kind.name}, K = {kind.allowed} as stored", stored, noise, holds=False)
    for share in SCRATCH_SHARES:
        figures += _mixed(f"{kind.name}, epsilon {share:g}", by_step[kind.allowed], noise, share, saved)
    return figures


def _compared(name: str, ours: Seen, noise: Seen, *, holds: bool) -> list[Figure]:
    """Return variety and quality, divided by those from noise, with targets where they hold."""
    rows = (
        ("variety by SSIM", ours.by_eye(ours).tolist(), noise.by_eye(noise).tolist(), REQUIRED),
        ("variety by the scorer's features", ours.by_scorer(ours).tolist(), noise.by_scorer(noise).tolist(), REQUIRED),
        ("attributes right ÷ those from noise", ours.attributes, noise.attributes, KEPT),
        ("CLIPScore ÷ that from noise", ours.clip_scores, noise.clip_scores, KEPT),
    )
    return [_ratio(f"{name}: {what}", one, other, limit if holds else None) for what, one, other, limit in rows]


def _mixed(name: str, ours: Seen, noise: Seen, share: float, saved: float) -> list[Figure]:
    """Return the variety with that share of the images from noise, and the saved steps that remain."""

    def expected(distance: Callable[[Seen, Seen], Tensor]) -> list[float]:
        one_each = distance(ours, noise)
        both = (1 - share) ** 2 * distance(ours, ours) + share**2 * distance(noise, noise)
        mixed: list[float] = (both + 2 * share * (1 - share) * one_each).tolist()
        return mixed

    return [
        _ratio(f"{name}: variety by SSIM", expected(Seen.by_eye), noise.by_eye(noise).tolist(), None),
        _ratio(
            f"{name}: variety by the scorer's features",
            expected(Seen.by_scorer),
            noise.by_scorer(noise).tolist(),
            None,
        ),
        Figure(f"{name}: steps saved ÷ those saved as stored", (1 - share) * saved, informative()),
    ]


def _ratio(name: str, ours: Sequence[float], theirs: Sequence[float], limit: float | None) -> Figure:
    target = informative() if limit is None else at_least(limit)
    return measured(name, list(zip(ours, theirs, strict=True)), ratio_of_sums, target)


def main() -> int:
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--scorer", type=Path, required=True, metavar="DIR", help="folder of the attribute scorer")
        parser.add_argument("--prompts", type=int, default=8)
        parser.add_argument("--log-seed", type=int, default=13)

    options = parse_options("variety", __doc__, add)
    quiet_loaders()
    eyes, rules = Eyes(options.rest["scorer"]), SelectionSettings().rules()
    prompts = prompts_of(QUICK_PROMPTS if options.quick else options.rest["prompts"], options.rest["log_seed"])
    kinds = kinds_of(prompts)
    figures = [figure for kind in kinds for figure in figures_of(kind, prompts, eyes, rules)]
    return publish(options, figures, notes={"prompts": len(prompts.texts), "seeds": SEEDS})


if __name__ == "__main__":
    raise SystemExit(main())
