"""`pentimento bench thinning-profile` without its processes: a real engine, a file that the reader takes."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pentimento.domain.generation import Scheduler
from pentimento.policies.selector_profiles import ProfiledStep, ReuseKind, SelectorProfile, profile_to_json
from pentimento.policies.selector_profiling import ThresholdRule
from pentimento.policies.thinning_profiles import read_thinning_profiles
from pentimento.settings import load_settings
from pentimento.testing.checkpoints import write_checkpoint
from services.unet_worker.settings import ThinningProfileSettings
from services.unet_worker.thinning_profile import write_profile


class Digests:
    """Vectors by what is embedded: the same for the same bytes, and nothing more."""

    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.stack([_vector(text.encode()) for text in texts])

    def embed_pictures(self, pictures: Sequence[bytes]) -> NDArray[np.float32]:
        return np.stack([_vector(picture) for picture in pictures])


def _vector(data: bytes) -> NDArray[np.float32]:
    found = np.frombuffer(hashlib.sha256(data).digest(), np.uint8).astype(np.float32)
    return np.asarray(found / np.linalg.norm(found), np.float32)


def write_model(tmp_path: Path) -> Path:
    model = write_checkpoint(tmp_path / "model", prediction_type="v_prediction")
    entry = {"name": "model", "path": "model", "kind": "pipeline", "default_steps": 5}
    (tmp_path / "registry.json").write_text(json.dumps({"version": 1, "models": [entry]}))
    return model


def settings_of(tmp_path: Path, model: Path, *flags: str) -> ThinningProfileSettings:
    (tmp_path / "prompts.txt").write_text("")
    given = {"model": model, "prompts": tmp_path / "prompts.txt", "out": tmp_path / "profiles", "alpha": 0.1}
    named = [part for name, value in given.items() for part in (f"--{name}", str(value))]
    named += ["--embedder-address", "unix:/nowhere", "--begin", "0,0.4", *flags]
    return load_settings(ThinningProfileSettings, "bench_thinning_profile", named)


def test_a_profile_is_written_and_read(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, write_model(tmp_path), "--samples", "--keep", "0.8,0.4")

    write_profile(settings, ("a circle", "a square", "a circle"), Digests(), ("digests", "sha256:d"))

    (profile,) = read_thinning_profiles([tmp_path / "profiles"])
    assert (profile.model, profile.encoder, profile.scheduler) == ("model", "digests", Scheduler.DDIM)
    assert (profile.step_count, profile.alpha, profile.rule) == (5, 0.1, ThresholdRule.LOWER_BOUND)
    # The third prompt is the first again. Whatever the pictures, a tenth of the quality is kept.
    assert [(row.first_step, row.taken_count) for row in profile.rows] == [(0, 4), (0, 2), (2, 2), (2, 1)]
    assert {(row.picture_count, row.kept_count) for row in profile.rows} == {(2, 2)}
    # Two samples are surely nothing; every one of them is every one.
    assert profile.options(5) == ()
    assert len(profile.options(5, ThresholdRule.MINIMUM)) == 4
    samples = [json.loads(line) for line in (tmp_path / "profiles" / "model.samples.jsonl").read_text().splitlines()]
    assert len(samples) == 8


class Thrifty:
    """A judge to whom every picture but the first prompt's is worth nothing once it differs from the first seen."""

    name = "thrifty"

    def __init__(self) -> None:
        self._seen: dict[int, bytes] = {}

    def qualities(self, pictures: Sequence[bytes], rows: Sequence[int]) -> list[float]:
        pairs = list(zip(rows, pictures, strict=True))
        return [float(row == 0 or self._seen.setdefault(row, picture) == picture) for row, picture in pairs]


def test_hits_have_rows_of_their_own_and_the_stricter_judge_decides(tmp_path: Path) -> None:
    model = write_model(tmp_path)
    selector = SelectorProfile(
        ReuseKind.LATENTS,
        *("model", "sha256:m", "model", "sha256:m", "digests", "sha256:d", "clip_score"),
        alpha=0.1,
        rule=ThresholdRule.MINIMUM,
        step_count=50,
        model_step_count=5,
        pair_count=2,
        steps=(ProfiledStep(20, 2, minimum=-0.5),),
    )
    (tmp_path / "latents.json").write_text(profile_to_json(selector))
    settings = settings_of(tmp_path, model, "--selector-profile", str(tmp_path / "latents.json"), "--keep", "0.7")

    write_profile(settings, ("a circle", "a square"), Digests(), ("digests", "sha256:d"), lambda _: (Thrifty(),))

    (profile,) = read_thinning_profiles([tmp_path / "profiles"])
    assert profile.quality == "clip_score and thrifty"
    rows = {(row.resume_step, *row.place): (row.kept_count, row.picture_count) for row in profile.rows}
    # Of two prompts the second alone has one before it; resumed at two of five steps nothing begins earlier.
    assert rows == {(0, 0, 4): (1, 2), (0, 2, 2): (1, 2), (2, 2, 2): (0, 1)}
    assert profile.rows[-1].least_similarity == -0.5
