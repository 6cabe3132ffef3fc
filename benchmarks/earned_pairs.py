"""Measure the pairs that `earned_reuse` draws from: images of a scene log from noise, and from their nearest prompts.

    python -m benchmarks.earned_pairs [--pairs 360] [--log 2000] [--log-seed 31] [--images 0]

Not a benchmark: it writes `benchmarks/earned_pairs.json`, one line for each pair. Starts are those of the live suite: a
latent of another prompt or seed at K of 50 steps, noised again by the request's seed. Quality is CLIPScore by the
encoder that searches. Pairs are drawn among the log's prompts from a similarity of `LEAST` on, repeats with another
seed included. With `--images COUNT` it writes `benchmarks/earned_image_pairs.json` instead: the first prompts of the
log, each with the earlier image that is nearest to it.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.selector_profile import BATCH, LocalEncoder
from pentimento.diffusion.denoising import DenoisingRequest, ImageStart, LatentStart, NoiseStart
from pentimento.diffusion.images import decode_pixels
from pentimento.diffusion.weights import quiet_loaders
from pentimento.domain.thinned_steps import bridge_steps
from pentimento.policies.cache_selection import RENOISED_SHARE, RETAKEN_SHARE, SelectionRules, renoising_of
from services.embedder.model import open_model
from services.unet_worker.profiling.reuse import study_model
from services.unet_worker.profiling.settings import StudyRunSettings
from zoo.registry import WEIGHTS
from zoo.scene_log import SceneLog, clip_embedder, nearest, write_scene_log

PAIRS, IMAGE_PAIRS = (Path(__file__).parent / f"earned_{kind}.json" for kind in ("pairs", "image_pairs"))
ENCODER, MODEL = "tiny-clip", "tiny-heavy"
LEAST = 0.91
STEPS, IMAGE_STEPS = (10, 25), (30,)
FIRST_SEED = 70_000
RULES = SelectionRules(renoised_share=RENOISED_SHARE, retaken_share=RETAKEN_SHARE)


@dataclass(frozen=True)
class MeasuredPair:
    """Hold a pair's similarity (cosine), the quality from noise, and the quality by K of 50 skipped steps."""

    similarity: float
    scratch_quality: float
    qualities: dict[int, float]


def read_pairs(path: Path = PAIRS) -> tuple[MeasuredPair, ...]:
    """Return the recorded pairs, ascending in similarity."""
    rows = json.loads(path.read_text(encoding="utf-8"))["pairs"]
    steps = IMAGE_STEPS if path == IMAGE_PAIRS else STEPS
    found = (MeasuredPair(row[0], row[1], dict(zip(steps, row[2:], strict=True))) for row in rows)
    return tuple(sorted(found, key=lambda pair: pair.similarity))


def chosen_rows(log: SceneLog, count: int, rng: np.random.Generator) -> list[tuple[int, int, float]]:
    """Return drawn prompts of the log with their nearest earlier prompt and its similarity."""
    rows = []
    for row in range(1, len(log.prompts)):
        similarity, age = nearest(log.embeddings[:row], log.embeddings[row])
        if similarity >= LEAST:
            rows.append((row, row - age, min(similarity, 1.0)))
    drawn = rng.permutation(len(rows))[:count]
    return [rows[index] for index in sorted(drawn)]


def measure(log: SceneLog, rows: Sequence[tuple[int, int, float]]) -> Iterator[list[float]]:
    """Yield each pair's similarity, quality from noise, and quality by `STEPS`."""
    model = study_model(WEIGHTS / MODEL, StudyRunSettings(max_batch=BATCH))
    encoder = LocalEncoder(open_model(WEIGHTS / ENCODER))
    whole = sorted({row for receiver, donor, _ in rows for row in (receiver, donor)})

    def images(requests: Sequence[DenoisingRequest], what: str) -> np.ndarray:
        made = model.generated(what, requests)
        latents.append([picture.latents for picture in made])
        return encoder.embed_images([picture.png for picture in made])

    latents: list[list[Mapping[int, torch.Tensor]]] = []
    captured = frozenset(STEPS)
    from_noise = [
        replace(model.request(log.prompts[row], FIRST_SEED + row, NoiseStart()), capture_steps=captured)
        for row in whole
    ]
    scratch = dict(zip(whole, images(from_noise, "from noise"), strict=True))
    kept = dict(zip(whole, latents[0], strict=True))
    reused = {}
    for step in STEPS:
        again = renoising_of(step, RULES)
        bridge = bridge_steps(step, again.renoised_steps, again.retaken_steps)
        starts = [LatentStart(kept[donor][step], step - again.retaken_steps, bridge) for _, donor, _ in rows]
        requests = [
            model.request(log.prompts[receiver], FIRST_SEED + receiver, start)
            for (receiver, _, _), start in zip(rows, starts, strict=True)
        ]
        reused[step] = images(requests, f"from latents at {step}")
    for index, (receiver, _, similarity) in enumerate(rows):
        text = log.embeddings[receiver]
        qualities = [float(vectors[index] @ text) for vectors in (reused[step] for step in STEPS)]
        yield [round(value, 4) for value in (similarity, float(scratch[receiver] @ text), *qualities)]


def measure_images(log: SceneLog) -> Iterator[list[float]]:
    """Yield each prompt's similarity to its nearest earlier image, quality from noise, and quality by `IMAGE_STEPS`."""
    model = study_model(WEIGHTS / MODEL, StudyRunSettings(max_batch=BATCH))
    encoder, side_px = LocalEncoder(open_model(WEIGHTS / ENCODER)), model.spec.width_px
    rows = range(len(log.prompts))
    requests = [model.request(log.prompts[row], FIRST_SEED + row, NoiseStart()) for row in rows]
    made = model.generated("from noise", requests)
    vectors = encoder.embed_images([picture.png for picture in made])
    donors = [int(np.argmax(vectors[:row] @ log.embeddings[row])) for row in rows[1:]]
    reused = []
    for step in IMAGE_STEPS:
        again = renoising_of(step, RULES)
        bridge = bridge_steps(step, again.renoised_steps, again.retaken_steps)
        pixels = [decode_pixels(made[donor].png, "donor", side_px, side_px) for donor in donors]
        starts = (ImageStart(each, step - again.retaken_steps, bridge=bridge) for each in pixels)
        again_from = [replace(requests[row], start=start) for row, start in zip(rows[1:], starts, strict=True)]
        refined = model.generated(f"from images at {step}", again_from)
        reused.append(encoder.embed_images([picture.png for picture in refined]))
    for index, (row, donor) in enumerate(zip(rows[1:], donors, strict=True)):
        text = log.embeddings[row]
        found = (vectors[donor], vectors[row], *(part[index] for part in reused))
        yield [round(float(vector @ text), 4) for vector in found]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.earned_pairs", description=__doc__)
    parser.add_argument("--pairs", type=int, default=360)
    parser.add_argument("--log", type=int, default=2000, help="prompts of the log")
    parser.add_argument("--log-seed", type=int, default=31)
    parser.add_argument("--images", type=int, default=0, help="prompts to refine nearest images of")
    options = parser.parse_args()
    torch.set_num_threads(1)
    quiet_loaders()
    rng = np.random.default_rng(options.log_seed)
    log = write_scene_log(options.images or options.log, clip_embedder(WEIGHTS / ENCODER), rng)
    pairs = measure_images(log) if options.images else measure(log, chosen_rows(log, options.pairs, rng))
    rows = ",\n".join(json.dumps(row) for row in pairs)
    about = {"model": MODEL, "encoder": ENCODER, "log_seed": options.log_seed, "log": len(log.prompts)}
    head = ", ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in about.items())
    out, steps = (IMAGE_PAIRS, IMAGE_STEPS) if options.images else (PAIRS, STEPS)
    columns = json.dumps(["similarity", "scratch", *(f"K {step}" for step in steps)])
    out.write_text(f'{{{head}, "columns": {columns}, "pairs": [\n{rows}\n]}}\n')


if __name__ == "__main__":
    main()
