"""`pentimento bench thinning-profile` without its processes: a real engine, a file that the reader takes."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pentimento.domain.generation import Scheduler
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


def test_a_profile_is_written_and_read(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "model", prediction_type="v_prediction")
    entry = {"name": "model", "path": "model", "kind": "pipeline", "default_steps": 5}
    (tmp_path / "registry.json").write_text(json.dumps({"version": 1, "models": [entry]}))
    (tmp_path / "prompts.txt").write_text("")
    given = {"model": model, "prompts": tmp_path / "prompts.txt", "out": tmp_path / "profiles", "alpha": 0.1}
    flags = [part for name, value in given.items() for part in (f"--{name}", str(value))]
    flags += ["--embedder-address", "unix:/nowhere", "--samples", "--begin", "0,0.4", "--keep", "0.8,0.4"]
    settings = load_settings(ThinningProfileSettings, "bench_thinning_profile", flags)

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
