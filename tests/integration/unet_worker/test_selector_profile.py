"""`pentimento bench selector-profile`: a real embedder, a real engine, a file that the reader takes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lab.fixtures.checkpoints import write_checkpoint
from pentimento.policies.selector_profiles import ReuseKind, read_selector_profiles
from pentimento.policies.selector_profiling import ThresholdRule
from pentimento.supervisor.models import registry
from zoo.registry import WEIGHTS

PROMPTS = ("a small red circle", "a large red circle", "a large red square", "a large red circle")


def models(folder: Path) -> tuple[Path, Path]:
    """A large model of ten steps and a small one of five."""
    large = write_checkpoint(folder / "large", prediction_type="v_prediction")
    small = write_checkpoint(folder / "small", prediction_type="epsilon")
    steps = {"large": 10, "small": 5}
    entries = [
        {"name": name, "path": name, "kind": "pipeline", "default_steps": count} for name, count in steps.items()
    ]
    (folder / "registry.json").write_text(json.dumps({"version": 1, "models": entries}))
    return large, small


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pentimento.cli", "bench", "selector-profile", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_profiles_of_latents_and_images_are_written_and_read(tmp_path: Path) -> None:
    if "tiny-clip" not in registry(WEIGHTS):
        pytest.skip("the zoo's encoder is not here")
    large, small = models(tmp_path)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"{prompt}\n" for prompt in PROMPTS))
    out = tmp_path / "profiles"

    done = run(
        *(str(large), "--small", str(small), "--prompts", str(prompts), "--out", str(out), "--samples"),
        *("--least-similarity", "-1", "--least-image-similarity", "-1"),
    )

    assert done.returncode == 0, done.stdout + done.stderr
    images, latents = sorted(read_selector_profiles([out]).profiles, key=lambda profile: profile.kind.value)
    assert (latents.kind, latents.model, latents.reference_model) == (ReuseKind.LATENTS, "large", "large")
    assert (images.kind, images.model, images.reference_model) == (ReuseKind.IMAGES, "small", "large")
    assert (
        latents.model_digest == latents.reference_model_digest == images.reference_model_digest != images.model_digest
    )
    assert latents.encoder == "tiny-clip"
    assert (latents.alpha, images.alpha, latents.rule) == (0.9, 0.95, ThresholdRule.LOWER_BOUND)
    # The fourth prompt is the second again, and the first has none before it.
    assert (latents.pair_count, images.pair_count) == (2, 2)
    assert [step.skipped_steps for step in latents.steps] == [5, 10, 15, 20, 25]
    # A tenth of five steps is none.
    assert [step.skipped_steps for step in images.steps] == [10, 15, 20, 25, 30]
    # Two samples are surely nothing.
    assert all(step.lower_bound is None for profile in (latents, images) for step in profile.steps)
    samples = (out / "latents-large.samples.jsonl").read_text().splitlines()
    assert len(samples) == 5 * 2


def test_an_encoder_that_does_not_come_up_is_said(tmp_path: Path) -> None:
    large, _ = models(tmp_path)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a\nb\n")
    empty = tmp_path / "empty"
    empty.mkdir()

    done = run(str(large), "--prompts", str(prompts), "--encoder", str(empty))

    assert done.returncode == 1
    assert "the embedder did not come up" in done.stderr
