"""Options of the zoo's commands that cannot be meant are refused by name, before anything is loaded."""

import sys

import pytest

from zoo import sample


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
