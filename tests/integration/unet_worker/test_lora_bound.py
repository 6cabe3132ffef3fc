"""Run `pentimento profile lora` with a real engine, and read its file as workers do."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lab.fixtures.checkpoints import write_checkpoint
from lab.fixtures.lora_files import random_factors, write_diffusers_lora
from pentimento.diffusion.families import load_model
from pentimento.diffusion.loras import layers_of
from pentimento.domain.errors import PentimentoError
from pentimento.profiles.catalogue import read_profiles, write_profiles
from pentimento.profiles.kinds import latest_start
from pentimento.profiles.rules import ThresholdRule
from services.unet_worker.adapters.lora_directory import read_bounds
from services.unet_worker.profiling.__main__ import main


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pentimento.cli", "profile", "lora", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def written(folder: Path) -> tuple[Path, Path, Path]:
    """Write a model of ten steps, two LoRAs for it and one prompt file."""
    model = write_checkpoint(folder / "model", prediction_type="v_prediction")
    entry = {"name": "model", "path": "model", "kind": "pipeline", "default_steps": 10}
    (folder / "registry.json").write_text(json.dumps({"version": 1, "models": [entry]}))
    loaded = load_model(model, torch.device("cpu"), torch.float32)
    base = layers_of(loaded.info.family, loaded.adaptable)
    for seed, (name, alpha) in enumerate({"strong": 16.0, "weak": 1e-6}.items()):
        write_diffusers_lora(folder / "loras" / name, random_factors(base, seed=seed), alpha=alpha)
    prompts = folder / "prompts.txt"
    prompts.write_text("a red circle\na blue star\n")
    return model, folder / "loras", prompts


async def test_bounds_are_measured_written_next_to_loras_and_read_by_workers(tmp_path: Path) -> None:
    model, loras, prompts = written(tmp_path)
    flags = ("--loras", str(loras), "--prompts", str(prompts), "--rule", "minimum", "--exhaustive")

    done = run(str(model), *flags)

    assert done.returncode == 0, done.stdout + done.stderr
    strong, weak = read_profiles([loras / "lora-bounds.json"]).profiles
    assert [one.of.adapters[0].name for one in (strong, weak)] == ["strong", "weak"]
    assert (weak.asked.rule, weak.conditions.step_count) == (ThresholdRule.MINIMUM, 10)
    # The strong LoRA may miss two of ten steps. The weak one changes almost nothing: images are similar for any start,
    # and more than a twentieth of its change happens in the first step.
    assert (latest_start(strong), latest_start(weak)) == (0.2, 0.0)
    allowed = [(row.place("steps"), [*row.allowed]) for row in strong.rows]
    assert allowed == [(1, ["minimum"]), (2, ["minimum"]), (3, [])]
    assert [(row.place("steps"), [*row.allowed]) for row in weak.rows] == [(1, [])]
    assert {row.count for row in (*strong.rows, *weak.rows)} == {2}
    assert min(row.figures["lowest_cosine"] for row in weak.rows) > 0.9999
    read = read_bounds((), loras, weak.of.model_digest)
    assert read == {one.of.adapters[0].digest: latest_start(one) for one in (strong, weak)}
    assert read_bounds((), loras, "sha256:another") == read_bounds((), tmp_path, weak.of.model_digest) == {}

    await main(["lora", "--model", str(model), *flags, "--only", "strong", "--first", "1"])

    measured, kept = read_profiles([loras / "lora-bounds.json"]).profiles
    assert (measured.rows[0].count, kept) == (1, weak)

    await main(["lora", "--model", str(model), *flags, "--resume"])

    assert read_profiles([loras / "lora-bounds.json"]).profiles == (measured, kept)


async def test_settled_verdicts_equal_exhaustive_ones_and_resume_after_each_row(tmp_path: Path) -> None:
    model, loras, prompts = written(tmp_path)
    prompts.write_text("".join(f"a circle and {number} stars\n" for number in range(64)))
    flags = ["lora", "--model", str(model), "--loras", str(loras), "--prompts", str(prompts)]
    whole, short, half = (tmp_path / f"{name}.json" for name in ("whole", "short", "half"))

    await main([*flags, "--exhaustive", "--out", str(whole)])
    await main([*flags, "--out", str(short)])

    found, exhaustive = read_profiles([short]).profiles, read_profiles([whole]).profiles
    assert [latest_start(one) for one in found] == [latest_start(one) for one in exhaustive] == [0.2, 0.0]
    assert [[row.count for row in one.rows] for one in found] == [[32, 32, 16, 16], [16]]

    strong = replace(found[0], rows=found[0].rows[:1])
    write_profiles(half, [strong])
    await main([*flags, "--out", str(half), "--resume"])

    resumed = read_profiles([half]).profiles
    assert [[row.count for row in one.rows] for one in resumed] == [[32, 32, 16, 16], [16]]
    assert [latest_start(one) for one in resumed] == [0.2, 0.0]


async def test_no_lora_of_the_model_is_an_error(tmp_path: Path) -> None:
    model, loras, prompts = written(tmp_path)

    with pytest.raises(PentimentoError, match="no requested LoRA changes model"):
        await main(
            ["lora", "--model", str(model), "--loras", str(loras), "--prompts", str(prompts), "--only", "nobody"]
        )
