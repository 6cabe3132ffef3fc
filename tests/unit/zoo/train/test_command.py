"""The zoo's commands: missing foundations and wrong options end with one line and exit status 2."""

import sys
from pathlib import Path

import pytest
import torch

from pentimento.domain.errors import FailedPrecondition, ResourceExhausted
from zoo import sample
from zoo.command import run
from zoo.devices import choose_device, device
from zoo.train.__main__ import main
from zoo.train.loop import CHECKPOINT
from zoo.train.parts import NEEDS, PARTS


def failed_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[object, str]:
    monkeypatch.setattr(sys, "argv", ["zoo.train", *arguments])
    before = torch.get_num_threads()
    with pytest.raises(SystemExit) as ended:
        run(main)
    torch.set_num_threads(before)
    return ended.value.code, capsys.readouterr().err


def test_part_without_foundations_names_parts_to_train_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, line = failed_line(monkeypatch, capsys, "heavy", "--work", str(tmp_path / "work"))

    assert code == 2
    assert line == (
        f"pentimento: heavy stands on autoencoder, which has no checkpoint in {tmp_path / 'work'}: run "
        "`pentimento zoo train autoencoder`, then `pentimento zoo train dual-encoder` first\n"
    )
    assert not (tmp_path / "work").exists()


def test_a_part_that_stands_on_a_damaged_one_names_the_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for part in NEEDS["heavy"]:
        (tmp_path / part).mkdir()
        (tmp_path / part / CHECKPOINT).write_bytes(b"none")

    code, line = failed_line(monkeypatch, capsys, "heavy", "--work", str(tmp_path))

    assert code == 2
    assert line.startswith(f"pentimento: {tmp_path / 'autoencoder' / CHECKPOINT}: expected a training's checkpoint")
    assert len(line.splitlines()) == 1


@pytest.mark.parametrize("arguments", [["no-such-part"], ["judge", "--steps", "0"], ["judge", "--device", "tpu"]])
def test_wrong_usage_is_exit_status_2(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = failed_line(monkeypatch, capsys, *arguments)

    assert code == 2
    assert "usage: pentimento zoo train" in lines


def test_every_part_stands_on_parts_that_are_trained_before_it() -> None:
    order = list(PARTS)

    assert all(order.index(needed) < order.index(part) for part, parts in NEEDS.items() for needed in parts)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(FailedPrecondition, match="torch sees no GPU"):
        choose_device("cuda")

    assert device().type == "cpu"


def test_full_disk_is_exit_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    def full() -> None:
        raise ResourceExhausted("DISK_FULL", "x: cannot be written: No space left on device")

    with pytest.raises(SystemExit) as ended:
        run(full)

    assert ended.value.code == 1
    assert capsys.readouterr().err == "pentimento: x: cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--steps", "0"], "argument --steps: must be at least 1, got 0"),
        (["--threads", "-1"], "argument --threads: must be at least 1, got -1"),
        (["--scale", "nan"], "argument --scale: must be a finite number, got nan"),
        (["--lora-weight", "inf"], "argument --lora-weight: must be a finite number, got inf"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(
    arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["zoo.sample", "a star", *arguments])

    with pytest.raises(SystemExit) as left:
        sample.main()

    assert left.value.code == 2
    assert told in capsys.readouterr().err
