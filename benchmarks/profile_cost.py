"""Count the denoising steps that profiles of the zoo take: as `pentimento profile` measures, and exhaustively.

    python -m benchmarks.profile_cost --scorer SCORERS [--prompts 200]

The profiles of `tiny-light`: skipped steps, and reuse of its latents. Each is measured twice with the same prompts,
seeds and rules. `exhaustive` tries one row after the other until no rule allows it, with every prompt, from the first
step on. By default the last row that holds is searched, a row ends once its verdict by LOWER_BOUND is settled, and
images share the steps before the first skipped one. A verdict is the permission that a deployment reads: the fewest
steps after each first step, and the least similarity of each K. SCORERS is a work folder of training
(`benchmarks.image_scorers`).

Figures count steps and not seconds: a batch takes the same time on both sides.
"""

import argparse
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import chain
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.selector_profile import LocalEncoder
from benchmarks.thinning_profiles import ENCODER, scorers_of
from lab.runs.measure import Figure, at_most, counted, informative, parse_options, publish
from pentimento.diffusion.denoising import DenoisingRequest
from pentimento.diffusion.image_generation import BatchGenerator, StudiedImage
from pentimento.diffusion.weights import quiet_loaders
from pentimento.profiles.document import Profile, ProfileKind
from pentimento.profiles.kinds import options, thresholds
from pentimento.settings import load_settings
from services.embedder.model import open_model
from services.unet_worker.profiling.inputs import StudyInputs
from services.unet_worker.profiling.settings import ProfileSettings
from zoo.registry import WEIGHTS
from zoo.scene_log import SceneLog, clip_embedder, write_scene_log

MODEL = "tiny-light"
KINDS = (ProfileKind.STEPS, ProfileKind.REUSE)
Verdicts = Mapping[object, object]


def main() -> int:
    asked = parse_options("profile_cost", __doc__, add_options)
    torch.set_num_threads(1)
    quiet_loaders()
    count = 16 if asked.quick else asked.rest["prompts"]
    log = write_scene_log(
        max(300, 2 * count), clip_embedder(WEIGHTS / ENCODER), np.random.default_rng(asked.rest["log_seed"])
    )
    figures: list[Figure] = []
    taken = {True: 0, False: 0}
    differing = verdict_count = 0
    for kind in KINDS:
        found = {}
        for exhaustive in (False, True):
            with counted_steps() as steps:
                found[exhaustive] = verdicts_of(kind, measured(kind, log, count, asked.rest["scorer"], exhaustive))
            taken[exhaustive] += sum(steps)
            print(f"{kind.value}, exhaustive {exhaustive}: {sum(steps)} steps, {found[exhaustive]}", flush=True)
            figures.append(
                Figure(f"{kind.value}: steps{', exhaustive' if exhaustive else ''}", sum(steps), informative())
            )
        places = found[True].keys() | found[False].keys()
        verdict_count += len(places)
        differing += sum(found[True].get(place) != found[False].get(place) for place in places)
    ratio = Figure("steps of all profiles ÷ exhaustive", taken[False] / taken[True], at_most(0.15, "x"))
    same = counted("verdicts that differ", differing, verdict_count, at_most(0))
    return publish(asked, [ratio, same, *figures], notes={"prompts": count, "model": MODEL})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scorer", type=Path, required=True, metavar="DIR", help="folder of the attribute scorer")
    parser.add_argument("--prompts", type=int, default=200, help="different prompts; reuse takes half as many more")
    parser.add_argument("--log-seed", type=int, default=21)


@contextmanager
def counted_steps() -> Iterator[list[int]]:
    """Yield the steps of every image that is generated meanwhile."""
    found: list[int] = []
    generate = BatchGenerator.generate

    def counting(generator: BatchGenerator, requests: Sequence[DenoisingRequest]) -> Iterator[StudiedImage]:
        for request in requests:
            first = request.start.first_step
            begun = request.thinned_steps[0] if request.thinned_steps else first
            steps = request.spec.num_inference_steps - first
            found.append(begun - first + len(request.thinned_steps) if request.thinned_steps else steps)
        return generate(generator, requests)

    with patch.object(BatchGenerator, "generate", counting):
        yield found


def measured(kind: ProfileKind, log: SceneLog, count: int, scorer: Path, exhaustive: bool) -> list[Profile]:
    """Return the last profile of each subject."""
    encoder = open_model(WEIGHTS / ENCODER)
    # Reuse takes the log in its order, repeats included.
    prompts = log.prompts[: 3 * count // 2] if kind is ProfileKind.REUSE else tuple(dict.fromkeys(log.prompts))[:count]
    with tempfile.TemporaryDirectory() as there:
        (Path(there) / "prompts.txt").touch()
        named = [
            "--model",
            str(WEIGHTS / MODEL),
            "--prompts",
            f"{there}/prompts.txt",
            "--embedder-address",
            "unix:/none",
        ]
        named += ["--exhaustive"] if exhaustive else []
        settings = load_settings(ProfileSettings, "profile", named)
        inputs = StudyInputs(
            prompts, LocalEncoder(encoder), ENCODER, encoder.digest, lambda rows: scorers_of(scorer, log, rows)
        )
        measure = import_module(f"services.unet_worker.profiling.{kind.value}").measure
        return list({profile.key: profile for profile in measure(settings, inputs)}.values())


def verdicts_of(kind: ProfileKind, profiles: Sequence[Profile]) -> Verdicts:
    """Return what the profiles allow, by place."""
    if kind is ProfileKind.REUSE:
        return {row.saved_share: row.min_similarity for row in chain.from_iterable(map(thresholds, profiles))}
    fewest: dict[object, object] = {}
    (profile,) = profiles
    for option in sorted(options(profile, profile.conditions.step_count), key=lambda one: -one.taken_count):
        fewest[option.spacing, option.first_step] = option.taken_count
    return fewest


if __name__ == "__main__":
    raise SystemExit(main())
