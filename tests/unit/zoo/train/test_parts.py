"""Each part trains for a few steps on a handful of drawings, and resumes to the very same bits."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from zoo.drawing.tokenizer import build_tokenizer
from zoo.train import discriminator
from zoo.train.loop import CHECKPOINT, TrainingPlan, TrainingRun, read_state
from zoo.train.parts import NEEDS, PARTS, part_and_plan

pytestmark = pytest.mark.training

COUNT, BATCH = 48, 4


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a work folder with one training step of each part that others need."""
    folder = tmp_path_factory.mktemp("zoo-work")
    build_tokenizer(folder / "tokenizer", count=200, merges=50)
    for name in dict.fromkeys(needed for part in PARTS for needed in NEEDS.get(part, ())):
        make_part, _ = part_and_plan(name)
        TrainingRun(
            make_part(folder, count=COUNT, batch=BATCH), TrainingPlan(steps=1, peak_rate=1e-3), folder / name
        ).train()
    return folder


@pytest.fixture(autouse=True)
def one_step_per_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten generation: the discriminator's images need not be good here."""
    for name in ("LIGHT_STEPS", "HEAVY_STEPS"):
        monkeypatch.setattr(discriminator, name, 1)


@pytest.mark.parametrize("name", PARTS)
def test_a_resumed_run_is_bit_equal_to_one_that_never_stopped(name: str, work: Path, tmp_path: Path) -> None:
    make_part, _ = part_and_plan(name)
    plan = TrainingPlan(steps=3, peak_rate=1e-3, warmup=1)
    TrainingRun(make_part(work, count=COUNT, batch=BATCH), plan, tmp_path / "whole").train()
    TrainingRun(make_part(work, count=COUNT, batch=BATCH), plan, tmp_path / "halves").train(until=2)

    TrainingRun(make_part(work, seed=99, count=COUNT, batch=BATCH), plan, tmp_path / "halves").train()

    whole, halves = (load_file(tmp_path / run / CHECKPOINT) for run in ("whole", "halves"))
    assert read_state(tmp_path / "halves")["step"] == 3
    assert whole.keys() == halves.keys()
    assert all(torch.equal(whole[tensor], halves[tensor]) for tensor in whole)


def test_a_run_logs_its_loss_and_speed(work: Path, tmp_path: Path) -> None:
    make_part, _ = part_and_plan("autoencoder")

    TrainingRun(make_part(work, count=COUNT, batch=BATCH), TrainingPlan(steps=1, peak_rate=1e-3), tmp_path).train()

    line = (tmp_path / "log.jsonl").read_text(encoding="utf-8")
    assert '"step": 1' in line
    assert '"seconds_per_step"' in line


def test_the_learning_rate_is_a_function_of_the_step() -> None:
    plan = TrainingPlan(steps=100, peak_rate=1.0, warmup=10, cooldown=0.5)

    rates = [plan.rate(step) for step in (0, 9, 40, 75, 99)]

    assert rates == pytest.approx([0.1, 1.0, 1.0, 0.5, 0.02])
