"""Options of the zoo's commands that cannot be meant are refused by name, before anything is loaded."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--steps", "0"], "argument --steps: must be at least 1, got 0"),
        (["--threads", "-1"], "argument --threads: must be at least 1, got -1"),
        (["--scale", "nan"], "argument --scale: must be a finite number, got nan"),
        (["--lora-weight", "inf"], "argument --lora-weight: must be a finite number, got inf"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(arguments: list[str], told: str) -> None:
    done = subprocess.run([sys.executable, "-m", "zoo.sample", "a star", *arguments], capture_output=True, text=True)

    assert done.returncode == 2
    assert told in done.stderr
