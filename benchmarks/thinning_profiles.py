"""Write the zoo's thinning and feature profiles: as `pentimento profile steps` or `features`, on a log of scenes, with
an attribute scorer in addition to CLIPScore. The stricter of the two scores counts.

    python -m benchmarks.thinning_profiles tiny-heavy --scorer SCORERS [--kind features] [--prompts 128]
        [--log-seed 21] [-- FLAGS]

FLAGS are those of `python -m services.unet_worker.profiling steps`. SCORERS is a work folder of training
(`benchmarks.image_scorers`).
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.image_scorers import AttributeScorer
from benchmarks.selector_profile import LocalEncoder
from pentimento.profiles.document import ProfileKind
from pentimento.settings import load_settings
from pentimento.supervisor.models import FEATURE_PROFILES, THINNING_PROFILES
from pentimento.telemetry import configure_logging
from services.embedder.model import open_model
from services.unet_worker.profiling.command import measure_and_write
from services.unet_worker.profiling.inputs import QualityScorer, StudyInputs
from services.unet_worker.profiling.settings import ProfileSettings
from zoo.registry import WEIGHTS
from zoo.scene_log import SceneLog, clip_embedder, write_scene_log

ENCODER = "tiny-clip"
PROFILES = {ProfileKind.STEPS: THINNING_PROFILES, ProfileKind.FEATURES: FEATURE_PROFILES}


def main() -> int:
    options, flags = parsed()
    configure_logging("thinning_profiles", "")
    torch.set_num_threads(1)
    folder = WEIGHTS / ENCODER
    log = write_scene_log(options.log_count, clip_embedder(folder), np.random.default_rng(options.log_seed))
    encoder = open_model(folder)
    with tempfile.TemporaryDirectory() as there:
        # The settings need a file; the prompts come from the log.
        named = Path(there) / f"zoo.scene_log, seed {options.log_seed}, first {options.prompts} that differ"
        named.touch()
        given = ["--model", str(WEIGHTS / options.model), "--prompts", str(named), "--embedder-address", "unix:/none"]
        # Images have the profiles of all kinds in one folder.
        prefix = "features-" if options.kind is ProfileKind.FEATURES else ""
        out = PROFILES[options.kind] / f"{prefix}{'+'.join((options.model, *options.loras))}.json"
        loras = ["--loras", str(WEIGHTS), "--with-loras", ",".join(options.loras)] if options.loras else []
        settings = load_settings(ProfileSettings, "profile", [*given, *loras, "--out", str(out), *flags])
        inputs = StudyInputs(
            tuple(dict.fromkeys(log.prompts))[: options.prompts],
            LocalEncoder(encoder),
            ENCODER,
            encoder.digest,
            lambda rows: scorers_of(options.scorer, log, rows),
        )
        measure_and_write(options.kind, settings, inputs)
    return 0


def scorers_of(work: Path, log: SceneLog, prompts: Sequence[str]) -> tuple[QualityScorer, ...]:
    """Return the scorers of a log's images in addition to CLIPScore."""
    asked = dict(zip(log.prompts, log.asked, strict=True))
    return (AttributeScorer(work, [asked[prompt] for prompt in prompts]),)


def parsed() -> tuple[argparse.Namespace, list[str]]:
    """Return the options, and the flags after them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.thinning_profiles", description=__doc__)
    parser.add_argument("model", help="of the zoo")
    parser.add_argument("--kind", type=ProfileKind, choices=PROFILES, default=ProfileKind.STEPS, help="steps, features")
    parser.add_argument("--scorer", type=Path, required=True, metavar="DIR", help="folder of the attribute scorer")
    parser.add_argument("--prompts", type=int, default=128, help="number of different prompts of the log")
    parser.add_argument("--log-count", type=int, default=600, help="length of the log")
    parser.add_argument("--log-seed", type=int, default=21)
    parser.add_argument("--lora", dest="loras", action="append", default=[], help="LoRA of the zoo; may be repeated")
    options, rest = parser.parse_known_args()
    return options, [flag for flag in rest if flag != "--"]


if __name__ == "__main__":
    raise SystemExit(main())
