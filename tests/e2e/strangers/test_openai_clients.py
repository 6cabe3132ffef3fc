"""Test OpenAI's unmodified clients in Python and JavaScript: generations, edits and refusals."""

import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pentimento.domain.errors import DEADLINE_PASSED, DeadlineExceeded
from pentimento.supervisor.local import LocalSuite
from services.edge.api.events import error_event
from tests.e2e.strangers.environment import ROOT, run
from tests.support.edge_packages import missing

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
EXAMPLES = ROOT / "examples"

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())}")


@pytest.fixture(scope="module")
def url(suite: LocalSuite) -> str:
    return f"http://{suite.endpoint.http}/v1"


@pytest.fixture(scope="module", params=["python", "javascript"])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """Return the command of the example in one language, and an empty folder for its files."""
    folder = tmp_path_factory.mktemp(request.param)
    example = EXAMPLES / f"openai-{request.param}"
    if request.param == "python":
        return [sys.executable, str(example / "generate.py")], folder
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node and npm are not installed")
    for name in ("generate.mjs", "package.json", "package-lock.json"):
        shutil.copyfile(example / name, folder / name)
    quiet = ("--no-audit", "--no-fund", "--no-update-notifier")
    run(["npm", "ci", "--ignore-scripts", "--prefer-offline", *quiet], folder)
    return ["node", "generate.mjs"], folder


def test_image_is_generated_and_edited(client: tuple[list[str], Path], url: str) -> None:
    command, folder = client

    said = run([*command, "a blue square on a white background", "picture.png", url], folder).splitlines()
    over = run([*command, "a red square on a white background", "over.png", url, "picture.png"], folder).splitlines()

    assert said[:-1] == ["image_generation.partial_image 0", "image_generation.partial_image 1"]
    assert said[-1].startswith("image_generation.completed picture.png: ")
    assert over[-1].startswith("image_edit.completed over.png: ")
    assert (folder / "picture.png").read_bytes().startswith(PNG_SIGNATURE)
    assert (folder / "over.png").read_bytes() != (folder / "picture.png").read_bytes()


def test_invalid_prompt_error_names_field(client: tuple[list[str], Path], url: str) -> None:
    command, folder = client

    done = subprocess.run([*command, "", "none.png", url], cwd=folder, capture_output=True, text=True, timeout=120)

    assert done.returncode == 1
    assert done.stderr.startswith("400 INVALID_FIELD prompt: ")
    assert not (folder / "none.png").exists()


class BrokenStream(BaseHTTPRequestHandler):
    """Answer as the edge does if an image fails during its generation."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        late = DeadlineExceeded("DEADLINE_EXCEEDED", DEADLINE_PASSED)
        self.wfile.write(error_event(late))

    def log_message(self, *_: object) -> None:
        """Write no log."""


def test_failure_during_an_image_is_one_line(client: tuple[list[str], Path]) -> None:
    command, folder = client
    with ThreadingHTTPServer(("127.0.0.1", 0), BrokenStream) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"

        done = subprocess.run([*command, "x", "none.png", url], cwd=folder, capture_output=True, text=True, timeout=120)
        server.shutdown()

    assert done.returncode == 1
    reason, _, message = done.stderr.strip().partition(": ")
    assert reason.startswith("stream DEADLINE_EXCEEDED ")
    assert message == DEADLINE_PASSED
    assert not (folder / "none.png").exists()
