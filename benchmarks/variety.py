"""Compare how much eight seeds of one prompt differ with the cache and without it, with the compute saved and the
quality.

    python -m benchmarks.variety --scorer SCORERS [--prompts 24]

SCORERS is the work folder of a trained scorer (`benchmarks.image_scorers`). Prompts are a scene log's
(`zoo.scene_log`); each has one donor, generated from noise by another seed. Eight other seeds then start as the
gateway's rule decides (`policies.cache_selection`, the gateway's default settings, the largest K of the shipped
profile): `tiny-heavy` from the donor's latent, `tiny-light` from the image of `tiny-heavy`. The same seeds are
generated from noise, and by the cache's earlier rule: a latent resumed as stored, an image noised to step K.

Variety is the mean distance of all pairs of the eight images, divided by that of the images from noise: 1 − SSIM, and
the distance of the scorer's features. Compute saved: denoising steps that the start skips, divided by the earlier
rule's. Quality: attributes that the scorer sees, and CLIPScore, divided by those of the images from
noise.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.image_distances import structural_similarity
from benchmarks.image_scorers import pixels_of
from benchmarks.selector_profile import BATCH, PROFILES
from lab.runs.intervals import ratio_of_sums
from lab.runs.measure import Figure, at_least, informative, measured, parse_options, publish
from pentimento.diffusion.images import decode_pixels
from pentimento.diffusion.painting import ImageStart, LatentStart, NoiseStart
from pentimento.diffusion.weights import quiet_loaders
from pentimento.domain.thinned_steps import bridge_steps
from pentimento.policies.cache_selection import Renoising, SelectionRules, renoising_of, skipped_steps
from pentimento.profiles.catalogue import read_profiles
from pentimento.profiles.document import ProfileKind, ReuseKind
from pentimento.profiles.kinds import start_of, thresholds
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

Start = NoiseStart | LatentStart | ImageStart
StartOf = Callable[[int, int, Renoising], Start]


@dataclass(frozen=True)
class Seen:
    """Hold measurements of eight images of each prompt: mean distances of their pairs, and quality, each (prompts,)."""

    by_eye: Sequence[float]
    by_scorer: Sequence[float]
    attributes: Sequence[float]
    clip_scores: Sequence[float]


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
    return [made.png for made in model.painter.paint(requests)]


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
        grouped = pixels.double().div(255).unflatten(0, (-1, SEEDS))
        pairs = list(combinations(range(SEEDS), 2))
        by_eye = [1.0 - structural_similarity(grouped[:, one], grouped[:, other]) for one, other in pairs]
        of_scorer = features.unflatten(0, (-1, SEEDS))
        by_scorer = [(of_scorer[:, one] - of_scorer[:, other]).norm(dim=1) for one, other in pairs]
        wanted = prompts.asked.repeat_interleave(SEEDS, 0)
        marks = self._examiner.mark(pixels[:, None], prompts.of_images, wanted)
        right = torch.as_tensor(marks.right[:, 0]).sum(dim=1) / (wanted != UNSAID).sum(dim=1)
        scores = torch.as_tensor(marks.clip_score[:, 0])
        rows = (torch.stack(by_eye).mean(dim=0), torch.stack(by_scorer).mean(dim=0))
        means = (values.unflatten(0, (-1, SEEDS)).double().mean(dim=1) for values in (right, scores))
        return Seen(*(values.tolist() for values in (*rows, *means)))


@dataclass(frozen=True)
class Kind:
    """Describe one kind of reuse: the model, its starting step (K of its steps), and its starts."""

    name: str
    model: StudyModel
    step: int
    start_of: StartOf


def kinds_of(prompts: AskedPrompts) -> Sequence[Kind]:
    """Return both kinds, over donors that `tiny-heavy` generates from noise."""
    painting = StudyRunSettings(max_batch=BATCH)
    heavy, light = (study_model(WEIGHTS / name, painting) for name in ("tiny-heavy", "tiny-light"))
    of_latents, of_images = _largest_step(ReuseKind.LATENTS, heavy), _largest_step(ReuseKind.IMAGES, light)
    requests = [
        replace(heavy.request(text, DONOR_SEED + place, NoiseStart()), capture_steps=frozenset({of_latents}))
        for place, text in enumerate(prompts.texts)
    ]
    donors = list(heavy.painter.paint(requests))
    side = heavy.spec.width_px
    pixels = [decode_pixels(donor.png, "donor", side, side) for donor in donors]

    def from_latent(place: int, step: int, again: Renoising) -> Start:
        return LatentStart(donors[place].latents[step], step - again.retaken_steps, _bridge(step, again))

    def from_image(place: int, step: int, again: Renoising) -> Start:
        return ImageStart(pixels[place], step - again.retaken_steps, bridge=_bridge(step, again))

    return (
        Kind("latents of tiny-heavy", heavy, of_latents, from_latent),
        Kind("images of tiny-heavy for tiny-light", light, of_images, from_image),
    )


def _bridge(step: int, again: Renoising) -> tuple[int, ...]:
    return bridge_steps(step, again.renoised_steps, again.retaken_steps)


def _largest_step(kind: ReuseKind, model: StudyModel) -> int:
    """Return K of the model's steps: the most that its shipped profile allows at any similarity."""
    profiles = read_profiles([PROFILES]).of(ProfileKind.REUSE)
    (profile,) = (one for one in profiles if start_of(one) is kind and one.of.model == model.spec.model)
    return max(skipped_steps(row, model.step_count) for row in thresholds(profile))


def figures_of(kind: Kind, prompts: AskedPrompts, eyes: Eyes, rules: SelectionRules) -> list[Figure]:
    """Return the figures of one kind: the present rule, and the starts as stored."""
    again, step = renoising_of(kind.step, rules), kind.step
    arms: Mapping[str, Callable[[int], Start]] = {
        "noise": lambda place: NoiseStart(),
        "stored": lambda place: kind.start_of(place, step, Renoising()),
        "varied": lambda place: kind.start_of(place, step, again),
    }
    seen = {name: eyes.see(generate(kind.model, prompts, start_of), prompts) for name, start_of in arms.items()}
    noise, stored, varied = seen["noise"], seen["stored"], seen["varied"]
    saved = (step - again.retaken_steps) / step

    def ratio(what: str, ours: Sequence[float], theirs: Sequence[float], limit: float | None) -> Figure:
        target = informative() if limit is None else at_least(limit)
        return measured(f"{kind.name}: {what}", list(zip(ours, theirs, strict=True)), ratio_of_sums, target)

    return [
        ratio("variety by SSIM", varied.by_eye, noise.by_eye, REQUIRED),
        ratio("variety by the judge's features", varied.by_scorer, noise.by_scorer, REQUIRED),
        Figure(f"{kind.name}: steps saved ÷ those saved before", saved, at_least(REQUIRED)),
        ratio("attributes right ÷ those from noise", varied.attributes, noise.attributes, KEPT),
        ratio("CLIPScore ÷ that from noise", varied.clip_scores, noise.clip_scores, KEPT),
        ratio("before: variety by SSIM", stored.by_eye, noise.by_eye, None),
        ratio("before: variety by the judge's features", stored.by_scorer, noise.by_scorer, None),
        ratio("before: attributes right ÷ those from noise", stored.attributes, noise.attributes, None),
        ratio("before: CLIPScore ÷ that from noise", stored.clip_scores, noise.clip_scores, None),
    ]


def main() -> int:
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--scorer", type=Path, required=True, metavar="DIR", help="folder of the attribute scorer")
        parser.add_argument("--prompts", type=int, default=24)
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
