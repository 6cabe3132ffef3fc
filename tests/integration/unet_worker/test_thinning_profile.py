"""`pentimento bench thinning-profile` without its processes: a real engine, a file that the reader takes."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lab.fixtures.checkpoints import write_checkpoint
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import Scheduler
from pentimento.policies.selector_profiles import ProfiledStep, ReuseKind, SelectorProfile, profile_to_json
from pentimento.policies.selector_profiling import ThresholdRule
from pentimento.policies.thinning_profiles import read_thinning_profiles
from pentimento.settings import load_settings
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
    named += ["--embedder-address", "unix:/nowhere", "--begin", "0,0.4", "--spacing", "1", *flags]
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


def test_every_spacing_is_measured_and_told(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, write_model(tmp_path), "--spacing", "1.5", "--keep", "0.6")

    write_profile(settings, ("a circle",), Digests(), ("digests", "sha256:d"))

    (profile,) = read_thinning_profiles([tmp_path / "profiles"])
    assert [(row.spacing, *row.place) for row in profile.rows] == [
        *((1.0, 0, 3), (1.0, 2, 2)),
        *((1.5, 0, 3), (1.5, 2, 2)),
    ]
    # Steps 0, 1 and 3 of five, and 0, 1 and 2: other pictures, and so another quality.
    assert profile.rows[0].mean_share != profile.rows[2].mean_share


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


def test_rows_are_added_to_a_profile_and_what_it_has_is_not_painted_again(tmp_path: Path) -> None:
    model, prompts, encoder = write_model(tmp_path), ("a circle", "a square"), ("digests", "sha256:d")
    write_profile(settings_of(tmp_path, model, "--keep", "0.8"), prompts, Digests(), encoder)
    settings = settings_of(tmp_path, model, "--keep", "0.8,0.4", "--add", "--samples", "--rule", "minimum")

    write_profile(settings, prompts, Digests(), encoder)

    (profile,) = read_thinning_profiles([tmp_path / "profiles"])
    assert [row.place for row in profile.rows] == [(0, 4), (0, 2), (2, 2), (2, 1)]
    assert profile.rule is ThresholdRule.MINIMUM
    samples = [json.loads(line) for line in (tmp_path / "profiles" / "model.samples.jsonl").read_text().splitlines()]
    assert {(sample["first_step"], sample["taken_count"]) for sample in samples} == {(0, 2), (2, 1)}


def test_rows_of_another_encoder_are_not_added(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, write_model(tmp_path), "--keep", "0.8", "--add")
    write_profile(replace(settings, add=False), ("a circle",), Digests(), ("digests", "sha256:d"))
    written = (tmp_path / "profiles" / "model.json").read_bytes()

    with pytest.raises(InvalidArgument, match=r"profile\.encoder_digest"):
        write_profile(settings, ("a circle",), Digests(), ("others", "sha256:e"))

    assert (tmp_path / "profiles" / "model.json").read_bytes() == written


def test_nothing_is_painted_where_there_is_no_file_to_add_to(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, write_model(tmp_path), "--add")

    with pytest.raises(InvalidArgument, match=r"add: .*model\.json"):
        write_profile(settings, ("a circle",), Digests(), ("digests", "sha256:d"))
