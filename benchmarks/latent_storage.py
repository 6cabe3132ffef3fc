"""Measure a cached latent's bytes, and the effect of compact storage on the image.

    python -m benchmarks.latent_storage [--prompts 8] [--log-seed 21]

For each model of the zoo, latents of N = 50 steps are captured at K = 5, 10, 15, 20 and 25 through the engine's loop,
and stored exactly and as float16:

- bytes, each against the exact latent's: of single latents, and of eight as one tensor, which has as many bytes as a
  latent of Stable Diffusion at 512 x 512;
- microseconds to encode and to decode those eight, formats alternating;
- the log's next prompt resumed from the stored latent, against the same resumed from the exact latent: difference in
  grey levels (0 to 255) and PSNR. The change from resuming the exact
  latent, against the image from scratch, is reported too, as is CLIPScore.

NIRVANA stores latents in half precision and states neither bytes nor cost. No figure here has a target: they decide
`--latent-format`.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.selector_profile import LocalEncoder
from lab.runs.intervals import ratio_of_sums
from lab.runs.measure import Figure, informative, measured, parse_options, publish
from pentimento.devices.choices import LatentFormat
from pentimento.diffusion.denoising import DenoisingRequest, LatentStart, NoiseStart
from pentimento.diffusion.images import latent_from_bytes, latent_to_bytes
from pentimento.diffusion.weights import quiet_loaders
from pentimento.images.decoding import decode
from services.embedder.model import open_model
from services.unet_worker.profiling.reuse import study_model
from services.unet_worker.profiling.reuse_study import StudyModel
from services.unet_worker.profiling.settings import StudyRunSettings
from zoo.registry import WEIGHTS
from zoo.scene_log import clip_embedder, write_scene_log

MODELS = ("tiny-heavy", "tiny-light", "tiny-flow")
ENCODER = "tiny-clip"
STEP_COUNT = 50
KEPT_STEPS = (5, 10, 15, 20, 25)
JOINED_COUNT = 8
BATCH = 8
ROUND_COUNT = 200

Pixels = NDArray[np.float64]
T = TypeVar("T")


@dataclass(frozen=True)
class GeneratedLog:
    """Hold prompts generated from scratch by one model: images (PNG), and the latents by prompt and step."""

    model: StudyModel
    prompts: Sequence[str]
    pngs: Sequence[bytes]
    latents: Sequence[Mapping[int, Tensor]]

    def every_latent(self) -> list[Tensor]:
        """Return all latents, by step and prompt."""
        return [latents[step] for step in KEPT_STEPS for latents in self.latents]

    def resume(self, step: int, stored_as: LatentFormat) -> list[bytes]:
        """Return each prompt's image (PNG), resumed from the latent of the prompt before it."""
        donors = [self.latents[number - 1][step] for number in range(len(self.prompts))]
        restored = [latent_from_bytes(latent_to_bytes(donor, stored_as), donor.shape) for donor in donors]
        requests = [
            self.model.request(prompt, number, LatentStart(latent, step))
            for number, (prompt, latent) in enumerate(zip(self.prompts, restored, strict=True))
        ]
        return [one.png for one in self.model.generator.generate(requests)]


def main() -> int:
    options = parse_options("latent_storage", __doc__, add_options)
    count, seed = 2 if options.quick else options.rest["prompts"], options.rest["log_seed"]
    torch.set_num_threads(1)
    quiet_loaders()
    folder = WEIGHTS / ENCODER
    log = write_scene_log(count, clip_embedder(folder), np.random.default_rng(seed))
    encoder = LocalEncoder(open_model(folder))
    figures: list[Figure] = []
    for name in MODELS:
        generated = generate(name, log.prompts)
        figures += [*sizes(name, generated), *speeds(name, generated, 20 if options.quick else ROUND_COUNT)]
        figures += differences(name, generated, encoder)
    return publish(options, figures, notes={"prompts": count, "log_seed": seed, "steps": STEP_COUNT})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompts", type=int, default=8, help="of the log, at least two")
    parser.add_argument("--log-seed", type=int, default=21)


def generate(name: str, prompts: Sequence[str]) -> GeneratedLog:
    """Generate the prompts from scratch, and store the latents."""
    loaded = study_model(WEIGHTS / name, StudyRunSettings(max_batch=BATCH))
    model = replace(loaded, spec=replace(loaded.spec, num_inference_steps=STEP_COUNT))
    requests: list[DenoisingRequest] = [
        replace(model.request(prompt, number, NoiseStart()), capture_steps=frozenset(KEPT_STEPS))
        for number, prompt in enumerate(prompts)
    ]
    pictures = list(model.generator.generate(requests))
    return GeneratedLog(model, prompts, [each.png for each in pictures], [each.latents for each in pictures])


def sizes(name: str, generated: GeneratedLog) -> Iterator[Figure]:
    """Yield the bytes of every format against the exact one's, of single latents and of eight as one."""
    latents = generated.every_latent()
    for what, tensors in (("one latent", latents), ("eight as one", joined(latents))):
        for stored_as in LatentFormat:
            check_lossless(tensors[0], stored_as)
            pairs = [(len(latent_to_bytes(one, stored_as)), len(latent_to_bytes(one))) for one in tensors]
            yield measured(
                f"{name}: {what}, {stored_as.value}: bytes of the exact latent's", pairs, ratio_of_sums, informative()
            )


def joined(latents: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors of eight latents each, (1, channels, 8 x height, width), without an incomplete last one."""
    wanted = [latents[start : start + JOINED_COUNT] for start in range(0, len(latents), JOINED_COUNT)]
    return [torch.cat(list(part), dim=2) for part in wanted if len(part) == JOINED_COUNT]


def check_lossless(latent: Tensor, stored_as: LatentFormat) -> None:
    """Raise AssertionError unless the latent returns exactly, rounded to the format's precision."""
    found = latent_from_bytes(latent_to_bytes(latent, stored_as), latent.shape)
    assert torch.equal(found, latent if stored_as is LatentFormat.EXACT else latent.half()), stored_as


def speeds(name: str, generated: GeneratedLog, rounds: int) -> Iterator[Figure]:
    """Yield the time that every format takes to write and to read eight latents as one, formats alternating."""
    latents = joined(generated.every_latent())
    taken: dict[tuple[LatentFormat, str], list[float]] = {}
    for number in range(rounds):
        latent = latents[number % len(latents)]
        for stored_as in LatentFormat:
            data, encoding_us = timed(partial(latent_to_bytes, latent, stored_as))
            _, decoding_us = timed(partial(latent_from_bytes, data, latent.shape))
            taken.setdefault((stored_as, "encode"), []).append(encoding_us)
            taken.setdefault((stored_as, "decode"), []).append(decoding_us)
    for (stored_as, what), samples in taken.items():
        yield measured(
            f"{name}: eight as one, {stored_as.value}: {what}", samples, statistics.median, informative("us")
        )


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Return the work's result and its microseconds."""
    started = time.perf_counter()
    found = work()
    return found, round((time.perf_counter() - started) * 1e6, 1)


def differences(name: str, generated: GeneratedLog, encoder: LocalEncoder) -> Iterator[Figure]:
    """Yield the effect of float16 on images, by K, and the effect of reuse."""
    texts = encoder.embed_texts(generated.prompts)

    def score(pngs: Sequence[bytes]) -> NDArray[np.float32]:
        return np.sum(encoder.embed_images(pngs) * texts, axis=1)

    for step in KEPT_STEPS:
        exact = generated.resume(step, LatentFormat.EXACT)
        where = f"{name}, K = {step}/{STEP_COUNT}"
        yield from compared(f"{where}: from scratch instead of from the exact latent", exact, generated.pngs)
        compact = generated.resume(step, LatentFormat.FLOAT16)
        what = f"{where}: float16 instead of exact"
        yield from compared(what, exact, compact)
        pairs = [(float(one), float(other)) for one, other in zip(score(compact), score(exact), strict=True)]
        yield measured(f"{what}: CLIPScore of the exact one's", pairs, ratio_of_sums, informative())


def compared(what: str, exact: Sequence[bytes], other: Sequence[bytes]) -> Iterator[Figure]:
    """Yield the largest and the mean difference in grey levels, and the PSNR of all pixels together."""
    gaps = [np.abs(pixels(one) - pixels(two)) for one, two in zip(exact, other, strict=True)]
    largest, means = [float(gap.max()) for gap in gaps], [float(gap.mean()) for gap in gaps]
    squares = [float((gap**2).mean()) for gap in gaps]
    yield measured(f"{what}: largest difference", largest, max, informative("grey levels"))
    yield measured(f"{what}: mean difference", means, statistics.fmean, informative("grey levels"))
    if any(squares):
        yield Figure(f"{what}: PSNR", psnr_db(statistics.fmean(squares)), informative("dB"), len(squares))


def pixels(png: bytes) -> Pixels:
    """Return the image's samples (height, width, 3), 0 to 255."""
    return decode(png, "picture", lambda image: np.asarray(image.convert("RGB"), np.float64))


def psnr_db(mean_square: float) -> float:
    """Return the peak signal-to-noise ratio of a mean squared difference of grey levels above 0."""
    return 10 * math.log10(255**2 / mean_square)


if __name__ == "__main__":
    raise SystemExit(main())
