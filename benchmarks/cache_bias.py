"""Measure what the selector's bias saves and costs: hits of a scene log at bias -2 to +2, and as the stored image.

    python -m benchmarks.cache_bias --scorer SCORERS [--prompts 110]

SCORERS is the work folder of a trained scorer (`benchmarks.image_scorers`). `tiny-heavy` generates a scene log
(`zoo.scene_log`) from noise. A prompt hits its nearest earlier one where the shipped profile of latents allows a K
(text to text), or the shipped profile of images (text to image), which `tiny-light` refines. Each hit is generated
again at every bias, as the gateway would start it (`profiles.kinds.biased`, the gateway's default re-noising); at the
largest bias it is the donor's image, through the model's autoencoder (K = N, pure retrieval).

Steps saved: of all steps of the hits. Quality: CLIPScore and attributes that the scorer sees, divided by those of the
same prompts and seeds from noise. More bias must save more; the quality must not grow with it.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from benchmarks.image_scorers import pixels_of
from benchmarks.selector_profile import BATCH, LocalEncoder, shipped_table
from lab.runs.intervals import ratio_of_sums
from lab.runs.measure import Figure, at_most, informative, measured, parse_options, publish
from pentimento.diffusion.denoising import ImageStart, LatentStart, NoiseStart
from pentimento.diffusion.image_generation import StudiedImage
from pentimento.diffusion.images import decode_pixels
from pentimento.diffusion.weights import quiet_loaders
from pentimento.domain.thinned_steps import bridge_steps
from pentimento.policies.cache_selection import SelectionRules, Thresholds, allowed_steps, renoising_of
from pentimento.profiles.document import ReuseKind
from pentimento.profiles.kinds import RETRIEVAL_BIAS, biased
from services.embedder.model import open_model
from services.unet_worker.profiling.reuse import study_model
from services.unet_worker.profiling.reuse_study import ReusePair, StudyModel, nearest_before
from services.unet_worker.profiling.settings import StudyRunSettings
from services.vectordb_gateway.settings import SelectionSettings
from zoo.drawing.captions import UNSAID
from zoo.evaluate.examination import Examiner
from zoo.registry import WEIGHTS
from zoo.scene_log import SceneLog, clip_embedder, write_scene_log
from zoo.train.parts import check_trained

BIASES = (-2, -1, 0, 1, 2, RETRIEVAL_BIAS)
FIRST_SEED = 40_000
MOST_HITS = 36
QUICK_PROMPTS = 60

Start = NoiseStart | LatentStart | ImageStart


@dataclass(frozen=True)
class ImageQuality:
    """Hold each image's CLIPScore and share of right attributes."""

    clip_scores: Sequence[float]
    attributes: Sequence[float]


@dataclass(frozen=True)
class BiasLog:
    """Hold a log, the heavy model's images of it with their latents, and both encoders' vectors."""

    log: SceneLog
    images: Sequence[StudiedImage]
    examiner: Examiner

    def quality(self, pairs: Sequence[ReusePair], images: Sequence[bytes]) -> ImageQuality:
        """Return the quality of an image of each pair's prompt."""
        pixels = torch.stack([pixels_of(image) for image in images])
        wanted = torch.tensor([self.log.asked[pair.receiver] for pair in pairs])
        marks = self.examiner.mark(pixels[:, None], tuple(self.log.prompts[pair.receiver] for pair in pairs), wanted)
        right = torch.as_tensor(marks.right[:, 0]).sum(dim=1) / (wanted != UNSAID).sum(dim=1)
        return ImageQuality(marks.clip_score[:, 0].tolist(), right.tolist())


@dataclass(frozen=True)
class BiasedReuse:
    """Describe one kind of reuse: the model that takes the hits, its table, and the starts at a K."""

    name: str
    model: StudyModel
    table: Thresholds
    pairs: Sequence[ReusePair]
    start: Callable[[ReusePair, int, SelectionRules], Start]

    def steps_at(self, pair: ReusePair, bias: int) -> int:
        """Return K of the model's steps that a hit skips at a bias; 0 where it becomes a miss."""
        if bias >= RETRIEVAL_BIAS:
            return self.model.step_count
        return allowed_steps(pair.similarity, self.model.step_count, biased(self.table, bias))


def generate_log(heavy: StudyModel, count: int, seed: int, scorer: Path) -> BiasLog:
    """Return a scene log that the heavy model generated from noise, latents of every tenth of the steps captured."""
    log = write_scene_log(count, clip_embedder(WEIGHTS / "tiny-clip"), np.random.default_rng(seed))
    captured = frozenset(range(5, heavy.step_count, 5))
    requests = [
        replace(heavy.request(text, FIRST_SEED + row, NoiseStart()), capture_steps=captured)
        for row, text in enumerate(log.prompts)
    ]
    return BiasLog(log, list(heavy.generator.generate(requests)), Examiner(WEIGHTS, scorer))


def kinds_of(made: BiasLog, heavy: StudyModel, light: StudyModel) -> tuple[BiasedReuse, BiasedReuse]:
    """Return reuse of latents and of images, with the log's hits by the shipped tables."""
    texts, prompts = made.log.embeddings, made.log.prompts
    images = LocalEncoder(open_model(WEIGHTS / "tiny-clip")).embed_images([image.png for image in made.images])
    side = heavy.spec.width_px
    models = {ReuseKind.LATENTS: heavy, ReuseKind.IMAGES: light}
    tables = {kind: shipped_table(kind, model.spec.model) for kind, model in models.items()}

    def hits(kind: ReuseKind, entries: np.ndarray) -> tuple[ReusePair, ...]:
        least = min(row.min_similarity for row in tables[kind])
        return nearest_before(texts, entries, prompts, least)[:MOST_HITS]

    def from_image(pair: ReusePair, step: int, rules: SelectionRules) -> Start:
        pixels = decode_pixels(made.images[pair.donor].png, "donor", side, side)
        again = renoising_of(step, rules)
        bridge = bridge_steps(step, again.renoised_steps, again.retaken_steps)
        return ImageStart(pixels, step - again.retaken_steps, bridge=bridge)

    def from_latent(pair: ReusePair, step: int, rules: SelectionRules) -> Start:
        again = renoising_of(step, rules)
        bridge = bridge_steps(step, again.renoised_steps, again.retaken_steps)
        return LatentStart(made.images[pair.donor].latents[step], step - again.retaken_steps, bridge)

    return (
        BiasedReuse("latents", heavy, tables[ReuseKind.LATENTS], hits(ReuseKind.LATENTS, texts), from_latent),
        BiasedReuse("images", light, tables[ReuseKind.IMAGES], hits(ReuseKind.IMAGES, images), from_image),
    )


def images_at(reuse: BiasedReuse, made: BiasLog, bias: int, rules: SelectionRules) -> tuple[list[bytes], list[float]]:
    """Return the hits' images at a bias, and the share of its steps that each one saves."""
    starts: list[Start] = []
    saved: list[float] = []
    for pair in reuse.pairs:
        step = reuse.steps_at(pair, bias)
        if step == 0:
            starts.append(NoiseStart())
        elif step == reuse.model.step_count:
            side = reuse.model.spec.width_px
            starts.append(ImageStart(decode_pixels(made.images[pair.donor].png, "donor", side, side), step))
        else:
            starts.append(reuse.start(pair, step, rules))
        saved.append(starts[-1].first_step / reuse.model.step_count)
    return generate(reuse, made, starts), saved


def generate(reuse: BiasedReuse, made: BiasLog, starts: Sequence[Start]) -> list[bytes]:
    """Return the images of the hits' prompts, with seeds of their own, from these starts."""
    requests = [
        reuse.model.request(made.log.prompts[pair.receiver], FIRST_SEED + pair.receiver, start)
        for pair, start in zip(reuse.pairs, starts, strict=True)
    ]
    return [image.png for image in reuse.model.generator.generate(requests)]


def figures_of(reuse: BiasedReuse, made: BiasLog, rules: SelectionRules) -> list[Figure]:
    """Return the figures of one kind: two of the biases' order, then each bias."""
    scratch = made.quality(reuse.pairs, generate(reuse, made, [NoiseStart()] * len(reuse.pairs)))
    found = {bias: images_at(reuse, made, bias, rules) for bias in BIASES}
    quality = {bias: made.quality(reuse.pairs, images) for bias, (images, _) in found.items()}
    saved = {bias: fmean(shares) for bias, (_, shares) in found.items()}
    falls = sum(later <= earlier for earlier, later in pairwise(saved.values()))
    rises = sum(fmean(quality[later].clip_scores) > fmean(quality[one].clip_scores) for one, later in pairwise(BIASES))
    none = at_most(0, f"of {len(BIASES) - 1}")
    figures = [
        Figure(f"{reuse.name}: biases that save no more than the one before", falls, none),
        Figure(f"{reuse.name}: biases with a higher CLIPScore than the one before", rises, none),
    ]
    for bias in BIASES:
        name = f"{reuse.name}, {'K = N' if bias == RETRIEVAL_BIAS else f'bias {bias:+}'}"
        figures.append(measured(f"{name}: steps saved", found[bias][1], fmean, informative()))
        for what, ours, theirs in (
            ("CLIPScore", quality[bias].clip_scores, scratch.clip_scores),
            ("attributes right", quality[bias].attributes, scratch.attributes),
        ):
            pairs = list(zip(ours, theirs, strict=True))
            figures.append(measured(f"{name}: {what} ÷ that from noise", pairs, ratio_of_sums, informative()))
    return figures


def main() -> int:
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--scorer", type=Path, required=True, metavar="DIR", help="folder of the attribute scorer")
        parser.add_argument("--prompts", type=int, default=110)
        parser.add_argument("--log-seed", type=int, default=17)

    options = parse_options("cache_bias", __doc__, add)
    rest: Mapping[str, object] = options.rest
    scorer = options.rest["scorer"]
    check_trained(scorer, "judge", f"--work {scorer}")
    torch.set_num_threads(1)
    quiet_loaders()
    run = StudyRunSettings(max_batch=BATCH)
    heavy, light = (study_model(WEIGHTS / name, run) for name in ("tiny-heavy", "tiny-light"))
    count = QUICK_PROMPTS if options.quick else options.rest["prompts"]
    made = generate_log(heavy, count, options.rest["log_seed"], scorer)
    kinds = kinds_of(made, heavy, light)
    figures = [figure for reuse in kinds for figure in figures_of(reuse, made, SelectionSettings().rules())]
    hits = {f"hits of {reuse.name}": len(reuse.pairs) for reuse in kinds}
    return publish(options, figures, notes={"prompts": count, "log_seed": str(rest["log_seed"]), **hits})


if __name__ == "__main__":
    raise SystemExit(main())
