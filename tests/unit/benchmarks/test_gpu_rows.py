"""Test the rows of `gpu_rows` on a CPU: each gives figures or the reason for none. Rows that compile take minutes, and
are left to the command.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_rows
from benchmarks.gpu_rows import Collected, collect, run_row
from lab.runs.measure import Options


def row(name: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(run_row(name, "cpu", tiny=True, rounds=2))
    return answer


def names(answer: dict[str, Any]) -> str:
    return " ".join(figure["name"] for figure in answer["figures"])


def options(tmp_path: Path, **rest: object) -> Options:
    return Options("gpu_rows", True, tmp_path / "out.json", {"device": "cpu", "tiny": True, **rest})


# The tests below cover steps; a row treats its networks in the same way.
SHOWN = (
    "device",
    "kernel_accuracy",
    "kernel_speed",
    "transport",
    "seam_sd15",
    "overlap_sdxl",
    "latent_parallel_sd15",
    "decode_sdxl",
)


@pytest.mark.parametrize("name", SHOWN)
def test_row_gives_figures_or_reasons(name: str) -> None:
    answer = row(name)

    assert answer["figures"] or answer["not_run"]
    assert all(figure["figure"] is not None and figure["n"] for figure in answer["figures"])
    assert all(reason.split(":")[0].isupper() for reason in answer["not_run"].values()), answer["not_run"]


def test_row_on_cpu_names_missing_ways() -> None:
    step = row("step_sd15")

    assert "tiny SD 1.5 step, float32: eager" in names(step)
    assert set(step["not_run"]) == {
        f"tiny SD 1.5 step, float32: {way}" for way in ("fused kernels", "captured", "captured with fused kernels")
    }


def test_step_row_compares_every_way_with_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's operations replace kernels, and repeated functions replace graphs."""
    from benchmarks import gpu_steps
    from pentimento.diffusion.kernels import REFERENCE
    from tests.unit.diffusion.engine.test_denoisers import Rerun

    monkeypatch.setattr(gpu_steps, "kernels_for", lambda device: REFERENCE)
    monkeypatch.setattr(gpu_steps, "cuda_recorder", lambda device: Rerun)

    answer = row("step_sdxl")

    assert answer["not_run"] == {}
    ratios = [figure for figure in answer["figures"] if ": eager / " in figure["name"]]
    assert len(ratios) == len(gpu_steps.WAYS) - 1


def test_failing_row_leaves_others(tmp_path: Path) -> None:
    collected = Collected()

    collect("no such row", options(tmp_path), 120, collected)
    collect("device", options(tmp_path, device="cuda"), 120, collected)
    collect("device", options(tmp_path), 0.01, collected)

    assert collected.row_s == {} and collected.figures == []
    assert collected.not_run["no such row"].startswith("FAILED: exit code 2")
    assert collected.not_run["device"].startswith("OUT_OF_TIME")


def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str, exit_code: int = 0) -> dict[str, Any]:
    out = tmp_path / "out.json"
    monkeypatch.setattr("sys.argv", ["gpu_rows", "--device", "cpu", "--tiny", "--out", str(out), *arguments])
    assert gpu_rows.main() == exit_code
    result: dict[str, Any] = json.loads(out.read_text())
    return result


def test_result_has_rows_and_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows' processes print a copy of this one's output."""

    def answered(command: list[str], **rest: object) -> subprocess.CompletedProcess[str]:
        name = command[command.index("--row") + 1]
        if name == "seam_sd15":
            raise KeyboardInterrupt
        printed = f"a library's line\n{gpu_rows.MARK}{run_row(name, 'cpu', tiny='--tiny' in command, rounds=2)}\n"
        return subprocess.CompletedProcess(command, 0, printed, "")

    monkeypatch.setattr(gpu_rows, "run_process", answered)
    result = written(tmp_path, monkeypatch, "--rows", "kernel_speed", "seam_sd15", "device", exit_code=1)

    assert set(result["notes"]["row_s"]) == {"kernel_speed"}
    reasons = result["notes"]["not_run"]
    assert reasons.pop("seam_sd15") == reasons.pop("device") == "INTERRUPTED"
    assert len(reasons) == 4 and all(name.endswith(": fused") for name in reasons)
    assert [figure["figure"] for figure in result["figures"] if figure["name"] == "rows that ran"] == [1]
    assert any(figure["name"].startswith("GEGLU, tiny") for figure in result["figures"])


def test_run_without_time_reports_it_and_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = written(tmp_path, monkeypatch, "--limit-s", "0", "--rows", "device", exit_code=1)

    assert result["notes"]["not_run"]["device"].startswith("OUT_OF_TIME")


@pytest.mark.parametrize(("failing", "exit_code"), [("", 0), ("transport", 1)])
def test_run_with_every_row_succeeds(
    failing: str, exit_code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answered(command: list[str], **rest: object) -> subprocess.CompletedProcess[str]:
        name = command[command.index("--row") + 1]
        printed = json.dumps({"figures": [], "not_run": {f"{name}: fused": "NO_DEVICE: a CPU"}})
        return subprocess.CompletedProcess(command, int(name == failing), f"{gpu_rows.MARK}{printed}\n", "")

    monkeypatch.setattr(gpu_rows, "run_process", answered)

    written(tmp_path, monkeypatch, "--rows", "device", "transport", exit_code=exit_code)
