"""Count the denoising steps that profiles of the zoo take: as `pentimento profile` measures, and exhaustively.

    python -m benchmarks.profile_cost --scorer SCORERS [--prompts 200] [--model tiny-heavy] [--record FILE]
    python -m benchmarks.profile_cost --loras

The profiles of a zoo model: skipped steps, and reuse of its latents; with `--loras` only its LoRAs' bounds, from 64
prompts by default and 128 exhaustively. Each is measured twice with the same prompts,
seeds and rules. `exhaustive` tries one row after the other until no rule allows it, with every prompt, from the first
step on. By default the last row that holds is searched, a row ends once its verdict by LOWER_BOUND is settled, images
share the steps before the first skipped one, and of the log only compared and reused prompts are generated from
scratch. A verdict is the permission that a deployment reads: the fewest steps after each first step, and the least
similarity of each K, and of a LoRA the most steps without it. SCORERS is a work folder of training
(`benchmarks.image_scorers`).

Figures count steps and not seconds: a batch takes the same time on both sides. An image that both sides compare is
generated once and counted on each. "Shared" counts the exhaustive rows as if they, too, shared the steps before the
first skipped one. With --record nothing is compared: FILE receives the profiles of the default side, with the steps
until each row was written (`first_hour`).
"""

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import chain
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.selector_profile import LocalEncoder
from benchmarks.thinning_profiles import ENCODER, scorers_of
from lab.runs.measure import Figure, at_most, counted, informative, parse_options, publish, renamed
from pentimento.diffusion.denoising import DenoisingRequest, LatentStart
from pentimento.diffusion.image_generation import BatchGenerator, StudiedImage
from pentimento.diffusion.weights import quiet_loaders
from pentimento.profiles.document import Profile, ProfileKind, ProfileRow, profiles_to_json
from pentimento.profiles.kinds import latest_start, options, thresholds
from pentimento.settings import load_settings
from services.embedder.model import open_model
from services.unet_worker.profiling.inputs import StudyInputs
from services.unet_worker.profiling.settings import FIRST, ProfileSettings
from zoo.registry import MODELS, WEIGHTS
from zoo.scene_log import SceneLog, clip_embedder, write_scene_log

KINDS = (ProfileKind.STEPS, ProfileKind.REUSE)
LORA_PROMPTS = 128
SIDES = {False: "default", True: "exhaustive"}
Verdicts = Mapping[object, object]


def main() -> int:
    asked = parse_options("profile_cost", __doc__, add_options)
    torch.set_num_threads(1)
    quiet_loaders()
    count = 16 if asked.quick else asked.rest["prompts"]
    kinds: tuple[ProfileKind, ...] = KINDS
    if asked.rest["loras"]:
        kinds, asked = (ProfileKind.LORA,), renamed(asked, "profile_cost_loras")
    elif asked.rest["scorer"] is None:
        raise SystemExit("--scorer must be given")
    log = write_scene_log(
        max(300, 2 * count), clip_embedder(WEIGHTS / ENCODER), np.random.default_rng(asked.rest["log_seed"])
    )
    if asked.rest["record"] is not None:
        recorded = {kind: recorded_of(asked.rest["model"], kind, log, count, asked.rest["scorer"]) for kind in KINDS}
        write_record(asked.rest["record"], recorded)
        return 0
    figures: list[Figure] = []
    taken = Counter[str]()
    differing = verdict_count = 0
    for kind in kinds:
        found, images = {}, Images()
        for exhaustive, side in SIDES.items():
            with images.counted() as steps:
                found[exhaustive] = verdicts_of(
                    kind, measured(asked.rest["model"], kind, log, count, asked.rest["scorer"], exhaustive)
                )
            counts = {side: steps.shared}
            if exhaustive:
                counts = {side: steps.whole, f"{side}, shared": steps.shared}
            taken.update(counts)
            print(f"{kind.value}: {counts}, {found[exhaustive]}", flush=True)
            figures += [
                Figure(f"{kind.value}: steps, {name}", number, informative()) for name, number in counts.items()
            ]
        places = found[True].keys() | found[False].keys()
        verdict_count += len(places)
        differing += sum(found[True].get(place) != found[False].get(place) for place in places)
    ours, before, shared = (taken[side] for side in ("default", "exhaustive", "exhaustive, shared"))
    target = informative("x") if asked.rest["loras"] else at_most(0.15, "x")
    ratio = Figure("steps of all profiles ÷ exhaustive", ours / before, target)
    same = counted("verdicts that differ", differing, verdict_count, at_most(0))
    also = Figure("steps of all profiles ÷ exhaustive, shared", ours / shared, informative("x"))
    if asked.rest["loras"]:
        figures.insert(0, Figure("steps of a LoRA's bound", ours / verdict_count, at_most(6_000)))
    return publish(asked, [ratio, same, also, *figures], notes={"prompts": count, "model": asked.rest["model"]})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scorer", type=Path, metavar="DIR", help="folder of the attribute scorer; for all but LoRAs")
    parser.add_argument("--loras", action="store_true", help="only the bounds of the zoo's LoRAs")
    parser.add_argument("--prompts", type=int, default=200, help="different prompts; reuse takes half as many more")
    parser.add_argument("--log-seed", type=int, default=21)
    parser.add_argument("--record", type=Path, metavar="FILE")
    models = [one.name for one in MODELS.values() if one.steps]
    parser.add_argument("--model", choices=models, default="tiny-heavy")


@dataclass
class StepCount:
    """Count the steps of images that share those before the first skipped one, and of images that take them all."""

    shared: int = 0
    whole: int = 0

    def add(self, request: DenoisingRequest) -> None:
        """Add the steps of an image."""
        first, thinned = request.start.first_step, request.thinned_steps
        if not thinned:
            self.shared += request.spec.num_inference_steps - first
            self.whole += request.spec.num_inference_steps - first
        else:
            self.shared += thinned[0] - first + len(thinned)
            self.whole += thinned[0] + len(thinned)


class Images:
    """Hold the images of a profile by their requests."""

    def __init__(self) -> None:
        self._known: dict[object, StudiedImage] = {}

    @contextmanager
    def counted(self) -> Iterator[StepCount]:
        """Yield the count of the steps of every image that is requested meanwhile; known ones are not generated."""
        count, generate = StepCount(), BatchGenerator.generate

        def counting(generator: BatchGenerator, requests: Sequence[DenoisingRequest]) -> Iterator[StudiedImage]:
            missing = {key_of(one): one for one in requests if key_of(one) not in self._known}
            self._known.update(zip(missing, generate(generator, list(missing.values())), strict=True))
            for request in requests:
                count.add(request)
                yield self._known[key_of(request)]

        with patch.object(BatchGenerator, "generate", counting):
            yield count


def key_of(request: DenoisingRequest) -> object:
    """Return what the image of a request depends on."""
    start = request.start
    latent = start.latent.numpy().tobytes() if isinstance(start, LatentStart) else b""
    late = request.loras.latest_step if request.loras is not None else 0
    adapters = (request.loras.take(late) if request.loras is not None else None) or ()
    loras = late, tuple(one.lora.digest for one in adapters)
    return request.spec, start.first_step, latent, request.thinned_steps, request.capture_steps, loras


def recorded_of(
    model: str, kind: ProfileKind, log: SceneLog, count: int, scorer: Path
) -> tuple[Profile, Sequence[int]]:
    """Return a profile of the default side with its rows in the order of their measurement, and the steps until each
    was written."""
    rows: list[ProfileRow] = []
    image_steps: list[int] = []
    with Images().counted() as steps:
        for profile in measured(model, kind, log, count, scorer, exhaustive=False):
            rows += [row for row in profile.rows if row not in rows]
            image_steps += [steps.shared] * (len(rows) - len(image_steps))
    return replace(profile, rows=tuple(rows)), image_steps


def write_record(path: Path, recorded: Mapping[ProfileKind, tuple[Profile, Sequence[int]]]) -> None:
    """Write profiles with their steps."""
    document = profiles_to_json(*(profile for profile, _ in recorded.values()))
    image_steps = json.dumps({kind.value: steps for kind, (_, steps) in recorded.items()})
    path.write_text(f'{{"image_steps": {image_steps},\n"profiles": {document}}}\n', encoding="utf-8")


def measured(
    model: str, kind: ProfileKind, log: SceneLog, count: int, scorer: Path, exhaustive: bool
) -> Iterator[Profile]:
    """Yield the profiles after each row."""
    encoder = open_model(WEIGHTS / ENCODER)
    if kind is ProfileKind.LORA:
        count = LORA_PROMPTS if exhaustive else FIRST[kind]
    # Reuse takes the log in its order, repeats included.
    prompts = log.prompts[: 3 * count // 2] if kind is ProfileKind.REUSE else tuple(dict.fromkeys(log.prompts))[:count]
    with tempfile.TemporaryDirectory() as there:
        (Path(there) / "prompts.txt").touch()
        named = [
            "--model",
            str(WEIGHTS / model),
            "--prompts",
            f"{there}/prompts.txt",
            "--embedder-address",
            "unix:/none",
        ]
        named += ["--exhaustive"] if exhaustive else []
        named += ["--loras", str(WEIGHTS)] if kind is ProfileKind.LORA else []
        settings = load_settings(ProfileSettings, "profile", named)
        inputs = StudyInputs(
            prompts, LocalEncoder(encoder), ENCODER, encoder.digest, lambda rows: scorers_of(scorer, log, rows)
        )
        measure = import_module(f"services.unet_worker.profiling.{kind.value}").measure
        yield from measure(settings, inputs)


def verdicts_of(kind: ProfileKind, measured: Iterable[Profile]) -> Verdicts:
    """Return what the last profile of each subject allows, by place."""
    profiles = {profile.key: profile for profile in measured}.values()
    if kind is ProfileKind.REUSE:
        return {row.saved_share: row.min_similarity for row in chain.from_iterable(map(thresholds, profiles))}
    if kind is ProfileKind.LORA:
        return {profile.of.adapters[0].name: latest_start(profile) for profile in profiles}
    fewest: dict[object, object] = {}
    (profile,) = profiles
    for option in sorted(options(profile, profile.conditions.step_count), key=lambda one: -one.taken_count):
        fewest[option.spacing, option.first_step] = option.taken_count
    return fewest


if __name__ == "__main__":
    raise SystemExit(main())
