"""Test a JavaScript client that loads the contracts at run time."""

import shutil
from pathlib import Path

import pytest

from tests.e2e.strangers.environment import ROOT, run

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
EXAMPLE = ROOT / "examples" / "javascript"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the example, its packages and the contracts."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node and npm are not installed")
    folder = tmp_path_factory.mktemp("javascript")
    for name in ("generate.mjs", "package.json", "package-lock.json"):
        shutil.copyfile(EXAMPLE / name, folder / name)
    run(
        ["npm", "ci", "--ignore-scripts", "--prefer-offline", "--no-audit", "--no-fund", "--no-update-notifier"], folder
    )
    return folder


def test_contracts_loaded_at_run_time_save_an_image(
    client: Path, suite_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENTIMENTO_PROTOS", str(ROOT / "protos"))

    said = run(["node", "generate.mjs", "a blue square on a white background", "picture.png", suite_address], client)

    assert said.startswith("accepted ")
    assert said.splitlines()[-1].startswith("completed picture.png: ")
    assert (client / "picture.png").read_bytes().startswith(PNG_SIGNATURE)


def test_invalid_prompt_error_names_field(client: Path, suite_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENTIMENTO_PROTOS", str(ROOT / "protos"))
    command = "node generate.mjs '' picture.png " + suite_address + " 2>&1 || true"

    said = run(["sh", "-c", command], client)

    assert "INVALID_ARGUMENT" in said
    assert "prompt" in said
