"""Run `pentimento profile steps` without its processes: a real engine, and a file that the reader accepts."""

import hashlib
import json
import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lab.fixtures.checkpoints import write_checkpoint
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import Scheduler
from pentimento.profiles.catalogue import read_profiles
from pentimento.profiles.document import ProfileKind, ProfileRow, profiles_to_json
from pentimento.profiles.kinds import options
from pentimento.profiles.rules import ThresholdRule
from pentimento.settings import load_settings
from services.unet_worker.profiling import steps
from services.unet_worker.profiling.command import measure_and_write
from services.unet_worker.profiling.inputs import QualityScorer, StudyInputs
from services.unet_worker.profiling.settings import ProfileSettings
from tests.support.profiles import LATENT_PROFILE, changed, reuse_step


class Digests:
    """Return vectors by a digest of the bytes: equal only for equal inputs."""

    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.stack([_vector(text.encode()) for text in texts])

    def embed_images(self, images: Sequence[bytes]) -> NDArray[np.float32]:
        return np.stack([_vector(image) for image in images])


def _vector(data: bytes) -> NDArray[np.float32]:
    found = np.frombuffer(hashlib.sha256(data).digest(), np.uint8).astype(np.float32)
    return np.asarray(found / np.linalg.norm(found), np.float32)


def write_model(tmp_path: Path) -> Path:
    model = write_checkpoint(tmp_path / "model", prediction_type="v_prediction")
    entry = {"name": "model", "path": "model", "kind": "pipeline", "default_steps": 5}
    (tmp_path / "registry.json").write_text(json.dumps({"version": 1, "models": [entry]}))
    return model


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin at the first step and at the third of five, with even gaps."""
    monkeypatch.setattr(steps, "BEGINS", (0.0, 0.4))
    monkeypatch.setattr(steps, "KEEPS", (0.8, 0.4))
    monkeypatch.setattr(steps, "SPACINGS", (1.0,))


def settings_of(tmp_path: Path, model: Path, *flags: str) -> ProfileSettings:
    (tmp_path / "prompts.txt").write_text("")
    given = {"model": model, "prompts": tmp_path / "prompts.txt", "out": tmp_path / "model.json", "alpha": 0.1}
    named = [part for name, value in given.items() for part in (f"--{name}", str(value))]
    named += ["--embedder-address", "unix:/nowhere", "--exhaustive", *flags]
    return load_settings(ProfileSettings, "profile", named)


def measured(
    settings: ProfileSettings,
    prompts: Sequence[str],
    *scorers: QualityScorer,
    encoder: tuple[str, str] = ("digests", "sha256:d"),
    kind: ProfileKind = ProfileKind.STEPS,
) -> None:
    inputs = StudyInputs(prompts, Digests(), *encoder, lambda _: scorers)
    measure_and_write(kind, settings, inputs)


def test_a_profile_is_written_and_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = settings_of(tmp_path, write_model(tmp_path))
    caplog.set_level(logging.INFO)

    measured(settings, ("a circle", "a square", "a circle"))

    # Two prompts take all 5 steps, then 4, 2, 2 and 1.
    assert "model: at most 28 denoising steps" in caplog.text

    (profile,) = read_profiles([tmp_path / "model.json"]).profiles
    assert (profile.of.model, profile.of.encoder, profile.conditions.scheduler) == ("model", "digests", Scheduler.DDIM)
    assert (profile.conditions.step_count, profile.asked.alpha) == (5, 0.1)
    assert profile.asked.rule is ThresholdRule.LOWER_BOUND
    # The third prompt repeats the first. Any image keeps a tenth of the quality.
    assert [place(row) for row in profile.rows] == [(0, 4), (0, 2), (2, 2), (2, 1)]
    assert {(row.count, row.kept) for row in profile.rows} == {(2, 2)}
    # Two samples prove nothing under LOWER_BOUND; under MINIMUM every sample permits its row.
    assert options(profile, 5) == ()
    assert len(options(profile, 5, ThresholdRule.MINIMUM)) == 4


def test_every_spacing_is_measured_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(tmp_path, write_model(tmp_path))
    monkeypatch.setattr(steps, "KEEPS", (0.6,))
    monkeypatch.setattr(steps, "SPACINGS", (1.0, 1.5))

    measured(settings, ("a circle",))

    (profile,) = read_profiles([tmp_path / "model.json"]).profiles
    assert [(row.at.get("spacing", 1.0), *place(row)) for row in profile.rows] == [
        *((1.0, 0, 3), (1.0, 2, 2)),
        *((1.5, 0, 3), (1.5, 2, 2)),
    ]
    # Steps 0, 1 and 3 of five, and 0, 1 and 2, give different images with different quality.
    assert profile.rows[0].figures != profile.rows[2].figures


def test_reused_features_and_skipped_steps_are_both_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompts = write_model(tmp_path), ("a circle", "a square")
    selector = latents_of_model(tmp_path)
    settings = settings_of(tmp_path, model, "--profiles", str(selector))
    monkeypatch.setattr(steps, "KEEPS", (0.4,))

    measured(settings, prompts)
    measured(settings, prompts, kind=ProfileKind.FEATURES)

    found = read_profiles([tmp_path / "model.json"])
    (skipped,), (reused,) = found.of(ProfileKind.STEPS), found.of(ProfileKind.FEATURES)
    # Hits at two of five steps reuse features by the list of an image from noise, too.
    assert [(row.place("resume_step"), *place(row)) for row in skipped.rows] == [(0, 0, 2), (0, 2, 1), (2, 2, 1)]
    assert [(row.place("resume_step"), *place(row)) for row in reused.rows] == [
        (0, 0, 2),
        (0, 2, 1),
        (2, 0, 2),
        (2, 2, 1),
    ]
    # By default gateways renoise a start at two steps by one step, and one step is repeated.
    again = [(row.place("renoised_steps"), row.place("retaken_steps")) for row in (*skipped.rows, *reused.rows)]
    assert again == [(0, 0)] * 5 + [(1, 1)] * 2
    # The same full images, and different images with the same steps.
    assert reused.rows[0].figures != skipped.rows[0].figures


def latents_of_model(tmp_path: Path) -> Path:
    """Write a profile that permits reuse of latents at two of five steps."""
    rows = (reuse_step(20, 2, minimum=-0.5),)
    selector = changed(
        LATENT_PROFILE, model="model", alpha=0.1, rule=ThresholdRule.MINIMUM, model_step_count=5, rows=rows
    )
    (tmp_path / "latents.json").write_text(profiles_to_json(selector))
    return tmp_path / "latents.json"


def place(row: ProfileRow) -> tuple[int, int]:
    return row.place("first_step"), row.place("taken_count")


class Thrifty:
    """Rate every image 0 once it differs from the first one seen, except the first prompt's."""

    name = "thrifty"

    def __init__(self) -> None:
        self._seen: dict[int, bytes] = {}

    def qualities(self, images: Sequence[bytes], rows: Sequence[int]) -> list[float]:
        pairs = list(zip(rows, images, strict=True))
        return [float(row == 0 or self._seen.setdefault(row, image) == image) for row, image in pairs]


def test_hits_have_own_rows_by_the_stricter_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_model(tmp_path)
    settings = settings_of(tmp_path, model, "--profiles", str(latents_of_model(tmp_path)))
    monkeypatch.setattr(steps, "KEEPS", (0.7,))

    measured(settings, ("a circle", "a square"), Thrifty())

    (profile,) = read_profiles([tmp_path / "model.json"]).profiles
    assert profile.asked.quality == "clip_score and thrifty"
    rows = {(row.place("resume_step"), *place(row)): (row.kept, row.count) for row in profile.rows}
    # Only the second of two prompts has a donor; a run resumed at two of five steps skips no earlier step.
    assert rows == {(0, 0, 4): (1, 2), (0, 2, 2): (1, 2), (2, 2, 2): (0, 1)}
    assert profile.rows[-1].at["least_similarity"] == -0.5


def test_new_rows_are_added_and_known_ones_not_generated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, prompts = write_model(tmp_path), ("a circle", "a square")
    with monkeypatch.context() as before:
        before.setattr(steps, "KEEPS", (0.8,))
        measured(settings_of(tmp_path, model), prompts)
    settings = settings_of(tmp_path, model, "--resume", "--rule", "minimum")
    caplog.set_level(logging.INFO)

    measured(settings, prompts)

    (profile,) = read_profiles([tmp_path / "model.json"]).profiles
    assert [place(row) for row in profile.rows] == [(0, 4), (0, 2), (2, 2), (2, 1)]
    assert profile.asked.rule is ThresholdRule.MINIMUM
    assert re.findall(r"(\d) steps from (\d) on", caplog.text) == [("1", "2"), ("2", "0")]


def test_rows_of_another_encoder_are_not_added(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, write_model(tmp_path), "--resume")
    measured(replace(settings, resume=False), ("a circle",))
    written = (tmp_path / "model.json").read_bytes()

    with pytest.raises(InvalidArgument, match=r"profile\.encoder_digest"):
        measured(settings, ("a circle",), encoder=("others", "sha256:e"))

    assert (tmp_path / "model.json").read_bytes() == written


def test_missing_profile_file_fails_before_generation(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, write_model(tmp_path), "--resume")

    with pytest.raises(InvalidArgument, match=r"resume: .*model\.json"):
        measured(settings, ("a circle",))
