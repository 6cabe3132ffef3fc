"""Run `pentimento profile reuse` with a real embedder and a real engine, and read its file."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lab.fixtures.checkpoints import write_checkpoint
from pentimento.profiles.catalogue import read_profiles
from pentimento.profiles.kinds import reuses_images, start_of
from pentimento.profiles.rules import ThresholdRule
from pentimento.supervisor.models import registry
from zoo.registry import WEIGHTS

PROMPTS = ("a small red circle", "a large red circle", "a large red square", "a large red circle")


def models(folder: Path) -> tuple[Path, Path]:
    """Return a large model of ten steps and a small one of five."""
    large = write_checkpoint(folder / "large", prediction_type="v_prediction")
    small = write_checkpoint(folder / "small", prediction_type="epsilon")
    steps = {"large": 10, "small": 5}
    entries = [
        {"name": name, "path": name, "kind": "pipeline", "default_steps": count} for name, count in steps.items()
    ]
    (folder / "registry.json").write_text(json.dumps({"version": 1, "models": entries}))
    return large, small


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pentimento.cli", "profile", "reuse", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_profiles_of_latents_and_images_are_written_and_read(tmp_path: Path) -> None:
    if "tiny-clip" not in registry(WEIGHTS):
        pytest.skip("the zoo's encoder is not here")
    large, small = models(tmp_path)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"{prompt}\n" for prompt in PROMPTS))
    out = tmp_path / "reuse.json"

    done = run(
        *(str(large), "--light", str(small), "--prompts", str(prompts), "--out", str(out)),
        *("--least-similarity", "-1", "--least-image-similarity", "-1", "--exhaustive"),
    )

    assert done.returncode == 0, done.stdout + done.stderr
    images, latents = sorted(read_profiles([out]).profiles, key=lambda profile: start_of(profile).value)
    assert (reuses_images(latents), latents.of.model, latents.of.reference) == (False, "large", "large")
    assert (reuses_images(images), images.of.model, images.of.reference) == (True, "small", "large")
    assert latents.of.model_digest == latents.of.reference_digest == images.of.reference_digest
    assert images.of.reference_digest != images.of.model_digest
    assert latents.of.encoder == "tiny-clip"
    assert (latents.asked.alpha, images.asked.alpha, latents.asked.rule) == (0.9, 0.95, ThresholdRule.LOWER_BOUND)
    # The fourth prompt repeats the second, and no prompt precedes the first.
    assert {row.count for row in (*latents.rows, *images.rows)} == {2}
    assert [row.place("skipped_steps") for row in latents.rows] == [5, 10, 15, 20, 25]
    # A tenth of five steps rounds to none.
    assert [row.place("skipped_steps") for row in images.rows] == [10, 15, 20, 25, 30]
    # Two samples prove nothing.
    assert all(row.by(ThresholdRule.LOWER_BOUND) is None for row in (*latents.rows, *images.rows))


def test_embedder_that_does_not_start_is_reported(tmp_path: Path) -> None:
    large, _ = models(tmp_path)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a\nb\n")
    empty = tmp_path / "empty"
    empty.mkdir()

    done = run(str(large), "--prompts", str(prompts), "--encoder", str(empty))

    assert done.returncode == 1
    assert "the embedder did not come up" in done.stderr
