"""Test which build of torch the Makefile installs, from indexes with one build, both or none: real make, real pip."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pip
import pytest

ROOT = Path(__file__).parents[3]
TORCH = re.search(r"^torch==(\S+)", (ROOT / "constraints/cpu.txt").read_text(), re.MULTILINE)
assert TORCH is not None
DEFAULT, CPU = TORCH[1], f"{TORCH[1]}+cpu"

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("make") is None,
    reason="the CPU build has a label of its own on Linux alone",
)


def wheel(index: Path, version: str) -> None:
    """Write an empty torch wheel."""
    about = f"torch-{version}.dist-info"
    with zipfile.ZipFile(index / f"torch-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        file.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{about}/RECORD", "")


def installed(checkout: Path) -> list[str]:
    return [path.name for path in (checkout / ".venv").glob("lib/*/site-packages/torch-*.dist-info")]


def make_torch(checkout: Path, *versions: str, device: str = "cpu") -> "subprocess.CompletedProcess[str]":
    """Run the Makefile's target for torch in a venv without packages, with an index of these versions."""
    shutil.copytree(ROOT / "constraints", checkout / "constraints")
    shutil.copy(ROOT / "Makefile", checkout)
    index, pip_alone = checkout / "index", checkout / "pip_alone"
    index.mkdir()
    pip_alone.mkdir()
    (pip_alone / "pip").symlink_to(Path(pip.__file__).parent)
    for version in versions:
        wheel(index, version)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(checkout / ".venv")], check=True)
    (checkout / ".venv/.made").touch()
    unset = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "MAKE"))}
    ours = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_CONFIG_FILE": os.devnull}
    return subprocess.run(
        ["make", f".venv/.torch-{device}", f"DEVICE={device}"],
        cwd=checkout,
        env={**unset, **ours, "PYTHONPATH": str(pip_alone)},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def test_index_without_cpu_build_installs_default_with_a_warning(tmp_path: Path) -> None:
    made = make_torch(tmp_path, DEFAULT)

    assert made.returncode == 0, made.stderr
    assert installed(tmp_path) == [f"torch-{DEFAULT}.dist-info"]
    assert "several GB" in made.stdout
    assert "TORCH_INDEX_URL=" in made.stdout


def test_cpu_build_is_preferred(tmp_path: Path) -> None:
    made = make_torch(tmp_path, DEFAULT, CPU)

    assert made.returncode == 0, made.stderr
    assert installed(tmp_path) == [f"torch-{CPU}.dist-info"]
    assert "several GB" not in made.stdout


def test_the_cuda_build_is_the_default_one_and_needs_no_words(tmp_path: Path) -> None:
    made = make_torch(tmp_path, DEFAULT, device="cuda")

    assert made.returncode == 0, made.stderr
    assert "several GB" not in made.stdout


def test_index_without_torch_fails_and_names_the_variable(tmp_path: Path) -> None:
    made = make_torch(tmp_path)

    assert made.returncode != 0
    assert "TORCH_INDEX_URL=" in made.stdout
    assert not (tmp_path / ".venv/.torch-cpu").exists()
