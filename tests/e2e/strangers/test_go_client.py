"""A client in Go with stubs that buf generated; and the same call without a program, by grpcurl."""

import base64
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.strangers.environment import ROOT, run

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
EXAMPLE = ROOT / "examples" / "go"
# `go tool` runs the plugins that go.mod names since this one.
OLDEST_GO = (1, 24)
METHOD = "pentimento.api.image.v1.ImageService/Generate"


def why_no_go() -> str:
    """What is missing to build the example; "" where nothing is."""
    go = shutil.which("go")
    if go is None:
        return "Go is not installed"
    said = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=True, timeout=60).stdout
    version = tuple(map(int, re.findall(r"\d+", said)[:2]))
    return "" if version >= OLDEST_GO else f"Go is {said.strip()}, the example needs {'.'.join(map(str, OLDEST_GO))}"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, built from what its folder and the contracts have."""
    if why := why_no_go():
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("go") / "examples" / "go"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("gen"))
    (folder.parents[1] / "protos").symlink_to(ROOT / "protos")
    run([Path(sys.executable).with_name("buf"), "generate"], folder)
    run(["go", "build", "-o", "client", "."], folder)
    return folder


def test_generated_stubs_paint_a_picture(client: Path, suite_address: str) -> None:
    said = run(["./client", "a blue square on a white background", "picture.png", suite_address], client)

    assert said.startswith("accepted ")
    assert said.splitlines()[-1].startswith("completed picture.png: ")
    assert (client / "picture.png").read_bytes().startswith(PNG_SIGNATURE)


def test_a_refusal_names_the_field(client: Path, suite_address: str) -> None:
    said = run(["sh", "-c", f"./client '' picture.png {suite_address} 2>&1 || true"], client)

    assert said.startswith("failed: InvalidArgument")
    assert "prompt" in said


@pytest.mark.skipif(shutil.which("grpcurl") is None, reason="grpcurl is not installed")
def test_grpcurl_needs_no_file_of_the_contracts(suite_address: str, tmp_path: Path) -> None:
    asked = json.dumps({"request": {"prompt": "a red circle", "seed": "0"}})

    said = run(["grpcurl", "-plaintext", "-d", asked, suite_address, METHOD], tmp_path)

    events = json.loads("[" + re.sub(r"\}\s*\{", "},{", said) + "]")
    image = next(event["completed"]["image"] for event in events if "completed" in event)
    assert base64.b64decode(image).startswith(PNG_SIGNATURE)
