"""Test which interpreter the Makefile's venv gets: real make, a PATH with interpreters that report a version."""

import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[3] / "Makefile"
TOOLS = ("sh", "sed", "uname")

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


def chosen(checkout: Path, *interpreters: str) -> str:
    """Return what would make the venv where the PATH has these interpreters and no other."""
    shutil.copy(MAKEFILE, checkout)
    shutil.copytree(MAKEFILE.parent / "constraints", checkout / "constraints")
    programs = checkout / "bin"
    programs.mkdir()
    for tool in TOOLS:
        (programs / tool).symlink_to(shutil.which(tool) or tool)
    for name in interpreters:
        (programs / name).symlink_to(shutil.which("true") or "true")
    make = shutil.which("make") or "make"
    planned = subprocess.run(
        [make, "--dry-run", ".venv/.made"],
        cwd=checkout,
        env={"PATH": str(programs)},
        capture_output=True,
        text=True,
        check=True,
    )
    return next(line for line in planned.stdout.splitlines() if "-m venv" in line).split()[0]


@pytest.mark.parametrize(
    ("interpreters", "name"),
    [
        (("python3", "python3.11", "python3.12"), "python3.11"),
        (("python3", "python3.12"), "python3.12"),
        (("python3", "python3.13"), "python3.13"),
        (("python3",), "python3"),
        ((), "python3"),
    ],
)
def test_the_first_interpreter_that_is_there_makes_the_venv(
    interpreters: tuple[str, ...], name: str, tmp_path: Path
) -> None:
    assert Path(chosen(tmp_path, *interpreters)).name == name
