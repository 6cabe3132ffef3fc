"""Load LoRAs during an image's first steps: the part of the load that remains in the latency, and of the style in the
image.

    python -m benchmarks.lora_async [--work .zoo-work]

Latency: one image at a time through the step engine on its thread, with its LoRA on the loader's threads from a storage
that takes a set time: 0.2 to 3 times K steps (for K = 0, of ten). An image may begin without its LoRA and waits for it
before step K. Every round also runs the same image with the LoRA in memory. A load may cost the part that does not fit
in K steps; the figure is the cost beyond that, as a share of the load, in the worst of the loads. Clocks stop after the
first step that must have the LoRA, since all later steps are equal. K is that of the zoo's bounds, and 10 of 50, as in
Katz (section 6): with the zoo's model, at hundredths of a second per step, and with a network of Stable Diffusion
1.5's size with random weights, float32, 256 pixels, and a LoRA of rank 16. Threads switch as often as a worker's.

Quality: held-out prompts with each LoRA from step K of the zoo's bounds on, and from Katz's K on (the latents with and
without the LoRA are equal until there), against the same from the start: SSIM of the images, the share of the LoRA's
change of the latents that remains, and, if `--work` has the style scorer (`pentimento zoo train style-judge`), the
style's probability.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean, median

import torch
from torch import Tensor

from benchmarks.image_distances import structural_similarity
from benchmarks.image_scorers import pixels_of
from benchmarks.lora_patch import ENDS, RANK
from lab.fixtures.full_size import write_full_size_checkpoint
from lab.fixtures.latent_listener import LatentListener
from lab.fixtures.lora_files import random_factors, write_diffusers_lora
from lab.runs.measure import Figure, Options, at_least, at_most, informative, measured, parse_options, publish
from pentimento.diffusion.denoising import DenoisingRequest, NoiseStart
from pentimento.diffusion.engine import EngineSettings, StepEngine
from pentimento.diffusion.families import DiffusionModel
from pentimento.diffusion.image_generation import StudiedImage
from pentimento.diffusion.loras import Lora, layers_of, lora_file_in, read_lora
from pentimento.diffusion.loras.loading import LoraLoader
from pentimento.domain.errors import Cancelled, PentimentoError
from pentimento.files.adapter_registry import LORA_BOUNDS_FILE
from pentimento.policies.components import Utility
from pentimento.profiles.catalogue import read_profiles
from pentimento.profiles.document import Profile, ProfileKind
from pentimento.profiles.kinds import latest_start
from pentimento.rpc.server import SWITCH_INTERVAL_S
from services.unet_worker.profiling.lora import LatenessStudy, strengths
from services.unet_worker.profiling.reuse import study_model
from services.unet_worker.profiling.reuse_study import StudyModel
from services.unet_worker.profiling.settings import StudyRunSettings
from zoo.drawing.dataset import as_pixels
from zoo.drawing.prompts import examination_prompts
from zoo.registry import WEIGHTS
from zoo.train.loop import CHECKPOINT, load_trained
from zoo.train.parts import WORK
from zoo.train.style_judge import CLASSES, StyleClassifier, style_scores

LOADS = (0.2, 0.5, 1.0, 1.5, 2.0, 3.0)
KATZ_STEPS = 10
FULL_SIZE_ROUNDS = 5
FIRST_PROMPT = 3000
PROMPT = "a red star at night"


@dataclass(frozen=True)
class LateImage:
    """Store seconds of one image from the request for its LoRA: to the end of the first step that must have it, and to
    its arrival."""

    latency_s: float
    load_s: float


@dataclass(frozen=True)
class LoadRound:
    """Store the images of one round: with the LoRA in memory, and with each of the loads."""

    at_hand_s: float
    late: dict[float, LateImage]


@dataclass
class ArrivalClock(LatentListener):
    """Signal when a number of steps was taken."""

    wanted: int = 0
    reached_at: float = 0.0
    reached: threading.Event = field(default_factory=threading.Event)

    def stepped(self, step: int, predicted_clean: Tensor | None) -> None:
        super().stepped(step, predicted_clean)
        if self.steps == self.wanted:
            self.reached_at = time.perf_counter()
            self.reached.set()

    def failed(self, error: PentimentoError) -> None:
        super().failed(error)
        self.reached.set()


class LateLoraEngine:
    """Run one engine on its thread, with one image at a time."""

    def __init__(self, model: DiffusionModel, file: Path, request: DenoisingRequest) -> None:
        self._request = request
        self._base = layers_of(model.info.family, model.adaptable)
        self._model, self._file = model, file
        self._digest = self._read(0.0, "").digest
        self._engine = StepEngine(model, EngineSettings(max_batch=1, threads=1))
        self._engine.start()

    def _read(self, load_s: float, _: str) -> Lora:
        """Read from a storage that takes `load_s`."""
        began_at = time.perf_counter()
        lora = read_lora(self._file, self._base, self._model.dtype)
        time.sleep(max(0.0, load_s - (time.perf_counter() - began_at)))
        return lora

    def generate(self, load_s: float | None, latest_step: int) -> LateImage:
        """Generate one image, with the base's weights again afterwards. None: the LoRA is in memory."""
        arrivals: list[float] = []

        def arrived() -> None:
            arrivals.append(time.perf_counter())
            self._engine.wake()

        loader = LoraLoader(partial(self._read, load_s or 0.0), 2**30, arrived, Utility())
        if load_s is None:
            loader.begin([self._digest])[0].result()
        began_at = time.perf_counter()
        source = loader.ask([(self._digest, 1.0)], latest_step)
        clock = ArrivalClock(wanted=latest_step + 1)
        ticket = self._engine.submit(replace(self._request, loras=source), clock)
        clock.reached.wait()
        ticket.stop(Cancelled("CANCELLED", "measured"))
        loader.close()
        plain = LatentListener()
        self._engine.submit(replace(self._request, spec=replace(self._request.spec, num_inference_steps=1)), plain)
        plain.wait()
        return LateImage(clock.reached_at - began_at, arrivals[-1] - began_at)

    def close(self) -> None:
        """Stop the engine."""
        self._engine.close()


def one_round(engine: LateLoraEngine, steps: int, step_s: float) -> LoadRound:
    unit_s = (steps or KATZ_STEPS) * step_s
    at_hand = engine.generate(None, steps)
    return LoadRound(at_hand.latency_s, {share: engine.generate(share * unit_s, steps) for share in LOADS})


def beyond(found: LoadRound, share: float, steps: int) -> float:
    """Return the load's cost beyond the part that does not fit in K steps, as a share of the load."""
    late = found.late[share]
    allowed_s = max(0.0, late.load_s - found.at_hand_s * steps / (steps + 1))
    return (late.latency_s - found.at_hand_s - allowed_s) / late.load_s


def latency_figures(name: str, steps: int, rounds: Sequence[LoadRound], step_count: int) -> Iterator[Figure]:
    shares = {share: [beyond(found, share, steps) for found in rounds] for share in LOADS}
    worst = max(LOADS, key=lambda share: median(shares[share]))
    title = f"{name}, K = {steps} of {step_count}"
    yield measured(f"{title}: beyond what K leaves / load, worst ({worst:g})", shares[worst], median, at_most(0.05))
    for share in LOADS:
        hidden = [1 - (one.late[share].latency_s - one.at_hand_s) / one.late[share].load_s for one in rounds]
        yield measured(f"{title}: share of the load hidden, load of {share:g}", hidden, median, informative())
    yield measured(f"{title}: with the LoRA at hand", [one.at_hand_s for one in rounds], median, informative("s"))


@dataclass(frozen=True)
class KeptStyle:
    """Store the style that late LoRAs keep, by image."""

    ssim: list[float]
    strength: list[float]
    style: list[float]
    style_on_time: list[float]


class LateGallery:
    """Generate images of held-out prompts, and measure them."""

    def __init__(self, study: LatenessStudy, work: Path) -> None:
        self.study = study
        trained = (work / "style-judge" / CHECKPOINT).is_file()
        self._scorer = load_trained(StyleClassifier(), work / "style-judge") if trained else None

    def kept(self, bound: Profile, lora: Lora, steps: int, on_time: Sequence[StudiedImage]) -> KeptStyle:
        late = self.study.generated(f"{lora_name(bound)} after {steps} steps", [lora], steps)
        one, other = pixels_of_all(on_time), pixels_of_all(late)
        ssim: list[float] = structural_similarity(one.float() / 255, other.float() / 255).tolist()
        style = lora_name(bound).removeprefix("tiny-lora-")
        return KeptStyle(
            ssim, strengths(self.study.without, on_time, late), self._seen(other, style), self._seen(one, style)
        )

    def _seen(self, pixels: Tensor, style: str) -> list[float]:
        if self._scorer is None:
            return []
        assert isinstance(self._scorer, StyleClassifier)
        found: list[float] = style_scores(self._scorer, as_pixels(pixels))[:, CLASSES.index(style)].tolist()
        return found


def pixels_of_all(images: Sequence[StudiedImage]) -> Tensor:
    """Return uint8 (n, 3, height, width)."""
    return torch.stack([pixels_of(image.png) for image in images])


def lora_name(bound: Profile) -> str:
    """Return the LoRA of a profile."""
    return bound.of.adapters[0].name


def allowed_steps(bound: Profile) -> int:
    """Return the steps that may run without the LoRA."""
    return round(latest_start(bound) * bound.conditions.step_count)


def alike_steps(bound: Profile) -> int:
    """Return Katz's K of the same images."""
    return int(bound.measured.figures["alike_steps"])


def quality_figures(gallery: LateGallery, bound: Profile, lora: Lora) -> Iterator[Figure]:
    allowed = allowed_steps(bound)
    on_time = gallery.study.on_time(lora_name(bound), lora)
    for name, steps, target in (("K", allowed, at_least(0.95)), ("Katz's K", alike_steps(bound), informative())):
        if steps == 0:
            continue
        kept = gallery.kept(bound, lora, steps, on_time)
        title = f"{lora_name(bound)}, {name} = {steps} of {bound.conditions.step_count}"
        yield measured(f"{title}: SSIM with the picture on time", kept.ssim, fmean, target)
        yield measured(f"{title}: strength, share of the change", kept.strength, fmean, target)
        if kept.style:
            pairs = list(zip(kept.style, kept.style_on_time, strict=True))
            yield measured(f"{title}: style's probability / on time", pairs, _ratio_of_means, target)


def _ratio_of_means(pairs: Sequence[tuple[float, float]]) -> float:
    return fmean(late for late, _ in pairs) / fmean(on_time for _, on_time in pairs)


@dataclass(frozen=True)
class LateSubject:
    """Name a LoRA of a model, and the steps that may run without it."""

    name: str
    study: StudyModel
    file: Path
    steps: int
    rounds: int

    def figures(self) -> Iterator[Figure]:
        """Measure the latencies."""
        engine = LateLoraEngine(self.study.generator.model, self.file, self.study.request(PROMPT, 0, NoiseStart()))
        engine.generate(None, self.steps)
        step_s = min(engine.generate(None, self.steps).latency_s for _ in range(3)) / (self.steps + 1)
        rounds = [one_round(engine, self.steps, step_s) for _ in range(self.rounds)]
        engine.close()
        return latency_figures(self.name, self.steps, rounds, self.study.step_count)


def full_size_subject(folder: Path) -> LateSubject:
    """Return a LoRA of a network of Stable Diffusion 1.5's size."""
    study = study_model(write_full_size_checkpoint(folder / "model"), StudyRunSettings(max_batch=1))
    model = study.generator.model
    factors = random_factors(layers_of(model.info.family, model.adaptable), rank=RANK, ends=ENDS)
    file = write_diffusers_lora(folder, factors, alpha=8.0)
    return LateSubject("SD 1.5's size, as Katz", study, file, KATZ_STEPS, FULL_SIZE_ROUNDS)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--work", type=Path, default=WORK, help="work folder of the style scorer; without one, no probability"
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--bounds", type=Path, default=WEIGHTS / LORA_BOUNDS_FILE)


def main() -> int:
    options: Options = parse_options("lora_async", __doc__, add_options)
    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    study = study_model(WEIGHTS / "tiny-heavy", StudyRunSettings(max_batch=16))
    model, bounds = study.generator.model, read_profiles([options.rest["bounds"]]).of(ProfileKind.LORA)
    base = layers_of(model.info.family, model.adaptable)
    files = {
        lora_name(bound): file for bound in bounds if (file := lora_file_in(WEIGHTS / lora_name(bound))) is not None
    }
    figures: list[Figure] = []
    allowed = {lora_name(bound): allowed_steps(bound) for bound in bounds}
    rounds = 2 if options.quick else options.rest["rounds"]
    for name, steps in [*allowed.items(), (f"{lora_name(bounds[0])}, as Katz", KATZ_STEPS)]:
        figures += LateSubject(name, study, files[name.partition(",")[0]], steps, rounds).figures()
    if not options.quick:
        with tempfile.TemporaryDirectory(prefix="lora-async") as folder:
            figures += full_size_subject(Path(folder)).figures()
    prompts = examination_prompts(4 if options.quick else options.rest["prompts"], FIRST_PROMPT).captions
    tried = sorted({steps for bound in bounds for steps in (allowed[lora_name(bound)], alike_steps(bound)) if steps})
    gallery = LateGallery(LatenessStudy(study, prompts, tuple(tried), FIRST_PROMPT), options.rest["work"])
    for bound in bounds:
        lora = read_lora(files[lora_name(bound)], base, model.dtype)
        figures += quality_figures(gallery, bound, lora)
    above = [float(steps > 0) for steps in allowed.values()]
    figures.append(measured("LoRAs of the zoo that may come late", above, sum, informative()))
    return publish(options, figures, notes={"steps": study.step_count, "threads": 1})


if __name__ == "__main__":
    raise SystemExit(main())
