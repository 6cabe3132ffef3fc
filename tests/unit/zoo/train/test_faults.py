"""Report faults around a training in one line that begins with the file, and leave no partial files."""

import json
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pentimento.domain.errors import FailedPrecondition, NotFound, PentimentoError
from zoo.drawing.dataset import cached_drawings
from zoo.drawing.scenes import IMAGE_SIZE
from zoo.drawing.tokenizer import build_tokenizer, load_tokenizer
from zoo.files import cached_tensors, read_tensors, write_tensors
from zoo.train.loop import CHECKPOINT, LOG, TrainingPlan, TrainingRun, load_trained, opened_log, read_log, read_state
from zoo.train.parts import NEEDS, changed_foundations, foundations, notes_on

PLAN = TrainingPlan(steps=6, peak_rate=1e-2, warmup=1, checkpoint_every=2)


class Line:
    """The smallest part there is: a line through points."""

    def __init__(self, name: str = "line", width: int = 3) -> None:
        torch.manual_seed(0)
        self.name, self.width = name, width
        self.module = nn.Linear(width, 1)

    def loss(self, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        points = torch.randn(4, self.width, generator=generator)
        return (self.module(points) - points.sum(dim=1, keepdim=True)).square().mean(), {}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Stop a run at step 4 of 6, and return its folder."""
    TrainingRun(Line(), PLAN, tmp_path / "line").train(until=4)
    return tmp_path / "line"


def content(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


def metadata(text: str) -> Callable[[Path], object]:
    return lambda path: save_file(load_file(path), path, {"state": text})


def added(name: str) -> Callable[[Path], object]:
    """Add a tensor to a checkpoint."""
    return lambda path: write_tensors(
        path, load_file(path) | {name: torch.zeros(1)}, {"state": json.dumps(read_state(path.parent))}
    )


NOT_WHOLE, NO_CHECKPOINT = "no whole safetensors file", "expected a training's checkpoint"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), NOT_WHOLE),
        (content(b""), NOT_WHOLE),
        (content(b"\x00" * 20), NOT_WHOLE),
        (content(pickle.dumps({"state": 1})), NOT_WHOLE),
        (content(b"PK\x03\x04" + bytes(100)), NOT_WHOLE),
        (lambda path: save_file({"weight": torch.zeros(1)}, path), NO_CHECKPOINT),
        (metadata("{"), NO_CHECKPOINT),
        (metadata("[]"), NO_CHECKPOINT),
        (metadata('{"step": "four"}'), NO_CHECKPOINT),
        (metadata('{"part": "line"}'), NO_CHECKPOINT),
        (added("part.extra"), "holds 'part.extra'"),
        (added("optimiser.9.step"), "its optimiser holds '9.step'"),
    ],
)
def test_training_names_damaged_checkpoint(folder: Path, damage: Callable[[Path], object], said: str) -> None:
    damage(folder / CHECKPOINT)

    assert_refused(folder, said)


@pytest.mark.parametrize(
    ("part", "seed", "said"),
    [
        ({"name": "circle"}, 0, "expected a checkpoint of circle, but its part is 'line'"),
        ({}, 7, "its seed is 0, not 7"),
        ({"width": 5}, 0, "the shape of 'part.weight' is (1, 3), not (1, 5)"),
    ],
    ids=["part", "seed", "size"],
)
def test_training_names_checkpoint_of_another(folder: Path, part: dict[str, Any], seed: int, said: str) -> None:
    assert_refused(folder, said, Line(**part), replace(PLAN, seed=seed))


def assert_refused(folder: Path, said: str, part: Line | None = None, plan: TrainingPlan = PLAN) -> None:
    with pytest.raises(PentimentoError) as refused:
        TrainingRun(part or Line(), plan, folder)
    message = refused.value.message
    assert said in message
    assert message.startswith(str(folder / CHECKPOINT))
    assert "\n" not in message


def test_load_trained_names_missing_and_other_weights(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"heavy/checkpoint\.safetensors: not there; expected the weights of heavy"):
        load_trained(nn.Linear(3, 1), tmp_path / "heavy")
    with pytest.raises(FailedPrecondition, match=r"expected the weights of line, but lacks 'average.0.bias'"):
        load_trained(nn.Sequential(nn.Linear(3, 1)), folder)


def test_killed_run_drops_log_after_its_checkpoint(folder: Path) -> None:
    with (folder / LOG).open("a", encoding="utf-8") as log:
        log.write('{"step": 5, "loss": 9.0}\n{"step": 6, "lo')

    TrainingRun(Line(), PLAN, folder).train()

    steps = [json.loads(line)["step"] for line in (folder / LOG).read_text(encoding="utf-8").splitlines()]
    assert steps == [4, 6]
    assert read_log(folder)[-1]["loss"] < 9.0


def test_log_without_checkpoint_starts_again(folder: Path) -> None:
    (folder / CHECKPOINT).unlink()

    TrainingRun(Line(), PLAN, folder).train()

    assert [line["step"] for line in read_log(folder)] == [6]


def test_a_run_that_was_killed_while_it_wrote_leaves_nothing_half(folder: Path) -> None:
    gone = 2**22 + 1  # above the largest process number
    left = folder / f"{CHECKPOINT}.{gone}.partial"
    left.write_bytes(b"half")

    TrainingRun(Line(), PLAN, folder).train()

    assert not left.exists()


def test_one_folder_has_one_training(folder: Path) -> None:
    with opened_log(folder, 4), pytest.raises(FailedPrecondition, match="another process trains here"):
        TrainingRun(Line(), PLAN, folder).train()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(FailedPrecondition, match=r"file/line/log\.jsonl: cannot be written: Not a directory"):
        TrainingRun(Line(), PLAN, tmp_path / "file" / "line").train()


def test_failed_write_leaves_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "numbers.safetensors"
    write_tensors(path, {"one": torch.ones(1)})
    write_tensors(tmp_path / "others.safetensors", {})
    path.chmod(0o600)

    with pytest.raises(RuntimeError), pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", interrupted)
        write_tensors(path, {"one": torch.zeros(1)})

    assert read_tensors(path, "numbers")["one"] == 1.0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["numbers.safetensors", "others.safetensors"]


def interrupted(_: int) -> None:
    raise RuntimeError("in the middle of it")


def test_cache_of_other_parents_is_rebuilt(tmp_path: Path) -> None:
    def cached(number: float, made_of: str) -> float:
        path = tmp_path / "cache.safetensors"
        return float(cached_tensors(path, "a number", ["n"], lambda: {"n": torch.tensor(number)}, made_of)["n"])

    assert [cached(1.0, "a"), cached(2.0, "a"), cached(3.0, "b")] == [1.0, 1.0, 3.0]


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-7]), "it is no whole safetensors file"),
        (lambda path: save_file({"images": torch.zeros(1)}, path), "lacks 'coverage'"),
        (lambda path: shrink(path), "its images are (4, 3, 8, 8)"),
    ],
)
def test_a_cache_of_drawings_that_is_none_is_named(damage, told: str, tmp_path: Path) -> None:
    tokenizer = build_tokenizer(tmp_path / "tokenizer", count=50, merges=10)
    cached_drawings(tmp_path, 1, 4, tokenizer)
    path = tmp_path / "drawings-1-4.safetensors"
    damage(path)

    with pytest.raises(FailedPrecondition) as refused:
        cached_drawings(tmp_path, 1, 4, tokenizer)

    assert refused.value.message.startswith(f"{path}: expected 4 drawings of {IMAGE_SIZE} px, but ")
    assert told in refused.value.message


def shrink(path: Path) -> None:
    tensors = load_file(path)
    save_file(tensors | {"images": tensors["images"][:, :, :8, :8].contiguous()}, path)


def test_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    build_tokenizer(tmp_path / "tokenizer", count=50, merges=10)
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{", encoding="utf-8")

    with pytest.raises(FailedPrecondition) as refused:
        load_tokenizer(tmp_path / "tokenizer")

    assert refused.value.message.startswith(f"{tmp_path / 'tokenizer'}: expected the files of a CLIPTokenizer, but ")
    assert "\n" not in refused.value.message


def test_part_reports_changed_foundations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NEEDS, "line", ("base", "other"))
    for base in ("base", "other"):
        TrainingRun(Line(base), PLAN, tmp_path / base).train(until=2)
    TrainingRun(Line(), PLAN, tmp_path / "line", foundations("line", tmp_path)).train(until=2)
    before = changed_foundations("line", tmp_path)

    TrainingRun(Line("base"), PLAN, tmp_path / "base").train()

    assert (before, changed_foundations("line", tmp_path)) == ([], ["base"])
    assert [note.partition(";")[0] for note in notes_on("line", tmp_path)] == [
        "line stands at step 2 of 6",
        "line was trained on another base",
    ]
