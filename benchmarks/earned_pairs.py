"""Measure the pairs that `earned_reuse` draws from: images of a scene log from noise, and from their nearest prompts.

    python -m benchmarks.earned_pairs [--pairs 360] [--log 2000] [--log-seed 31]

Not a benchmark: it writes `benchmarks/earned_pairs.json`, one line for each pair. Starts are those of the live suite: a
latent of another prompt or seed at K of 50 steps, noised again by the request's seed. Quality is CLIPScore by the
encoder that searches. Pairs are drawn among the log's prompts from a similarity of `LEAST` on, repeats with another
seed included.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.selector_profile import BATCH, LocalEncoder
from pentimento.diffusion.denoising import DenoisingRequest, LatentStart, NoiseStart
from pentimento.diffusion.weights import quiet_loaders
from pentimento.domain.thinned_steps import bridge_steps
from pentimento.policies.cache_selection import RENOISED_SHARE, RETAKEN_SHARE, SelectionRules, renoising_of
from services.embedder.model import open_model
from services.unet_worker.profiling.reuse import study_model
from services.unet_worker.profiling.settings import StudyRunSettings
from zoo.registry import WEIGHTS
from zoo.scene_log import SceneLog, clip_embedder, nearest, write_scene_log

PAIRS = Path(__file__).parent / "earned_pairs.json"
ENCODER, MODEL = "tiny-clip", "tiny-heavy"
LEAST = 0.91
STEPS = (10, 25)
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
    found = (MeasuredPair(row[0], row[1], dict(zip(STEPS, row[2:], strict=True))) for row in rows)
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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.earned_pairs", description=__doc__)
    parser.add_argument("--pairs", type=int, default=360)
    parser.add_argument("--log", type=int, default=2000, help="prompts of the log")
    parser.add_argument("--log-seed", type=int, default=31)
    parser.add_argument("--out", type=Path, default=PAIRS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    quiet_loaders()
    rng = np.random.default_rng(options.log_seed)
    log = write_scene_log(options.log, clip_embedder(WEIGHTS / ENCODER), rng)
    rows = ",\n".join(json.dumps(row) for row in measure(log, chosen_rows(log, options.pairs, rng)))
    about = {"model": MODEL, "encoder": ENCODER, "log_seed": options.log_seed, "log": options.log}
    head = ", ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in about.items())
    options.out.write_text(f'{{{head}, "columns": ["similarity", "scratch", "K 10", "K 25"], "pairs": [\n{rows}\n]}}\n')


if __name__ == "__main__":
    main()
