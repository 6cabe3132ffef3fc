"""Run `pentimento profile handover` without its processes: two real engines, and a file that the reader accepts."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.fixtures.checkpoints import write_checkpoint
from pentimento.profiles.catalogue import read_profiles
from pentimento.profiles.document import ProfileKind
from pentimento.profiles.kinds import reuse_share, taken_steps
from pentimento.profiles.rules import ThresholdRule
from pentimento.settings import load_settings
from services.unet_worker.profiling.command import measure_and_write
from services.unet_worker.profiling.inputs import StudyInputs
from services.unet_worker.profiling.settings import ProfileSettings


class Alike:
    """Embed all texts and images as one vector, so that CLIPScore prefers none."""

    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.ones((len(texts), 1), np.float32)

    def embed_images(self, images: Sequence[bytes]) -> NDArray[np.float32]:
        return np.ones((len(images), 1), np.float32)


class Noting:
    """Rate and record images: 1 for the first ones, which the later model makes from noise, 0.8 for the second ones,
    0.9 after them, and 0.5 from the fifth call on."""

    name = "noting"

    def __init__(self) -> None:
        self.shown: list[list[bytes]] = []

    def qualities(self, images: Sequence[bytes], rows: Sequence[int]) -> list[float]:
        self.shown.append(list(images))
        return [(1.0, 0.8, 0.9, 0.9, 0.5)[min(len(self.shown), 5) - 1]] * len(rows)


def test_a_pair_is_generated_both_ways_until_no_rule_allows_more(tmp_path: Path) -> None:
    models = {name: write_checkpoint(tmp_path / name, prediction_type="v_prediction") for name in ("light", "heavy")}
    steps = {"light": 2, "heavy": 5}
    entries = [{"name": name, "path": name, "kind": "pipeline", "default_steps": steps[name]} for name in models]
    (tmp_path / "registry.json").write_text(json.dumps({"version": 1, "models": entries}))
    (tmp_path / "prompts.txt").write_text("")
    given = {"model": models["heavy"], "light": models["light"], "prompts": tmp_path / "prompts.txt"}
    named = [part for name, value in given.items() for part in (f"--{name}", str(value))]
    named += ["--embedder-address", "unix:/none", "--out", str(tmp_path / "pair.json"), "--alpha", "0.85"]
    named += ["--exhaustive", "--rule", "minimum"]
    settings, judge = load_settings(ProfileSettings, "profile", named), Noting()

    prompts = ("a circle", "a square", "a circle")
    inputs = StudyInputs(prompts, Alike(), "alike", "sha256:a", lambda _: (judge,))
    measure_and_write(ProfileKind.HANDOVER, settings, inputs)

    (profile,) = read_profiles([tmp_path / "pair.json"]).profiles
    assert (profile.of.reference, profile.of.model, profile.conditions.step_count) == ("light", "heavy", 5)
    assert profile.measured.figures == {"light_share": 0.8}
    # A tenth of five steps is one step. At the third share no image has enough quality, so no larger share is
    # generated. The third prompt repeats the first.
    assert [(row.at["reuse_share"], row.kept, row.count) for row in profile.rows] == [
        (0.1, 2, 2),
        (0.2, 2, 2),
        (0.3, 0, 2),
    ]
    assert [taken_steps(5, row.at["reuse_share"]) for row in profile.rows] == [4, 4, 3]
    assert reuse_share(profile) == reuse_share(profile, ThresholdRule.MINIMUM) == 0.2
    from_noise, light, first, same, _ = judge.shown
    # One start image, step count and seed give one image, which differs from the image from noise.
    assert first == same and not {*first} & {*from_noise, *light}
