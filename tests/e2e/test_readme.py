"""What the README tells a reader to type does what it says."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pentimento.supervisor.local import LocalSuite
from tests.edge_packages import missing

README = Path(__file__).parents[2] / "README.md"
DEFAULT_ADDRESS = "127.0.0.1:50400"
DEFAULT_HTTP_ADDRESS = "127.0.0.1:50480"


def snippets(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("snippet", snippets("python"))
def test_python_of_the_readme_runs(suite: LocalSuite, snippet: str, tmp_path: Path):
    # The shared suite listens elsewhere; nothing else of the text is touched.
    program = snippet.replace(DEFAULT_ADDRESS, suite.endpoint.public)

    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=120)

    assert list(tmp_path.glob("*.png"))


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())}")
def test_curl_of_the_readme_runs(suite: LocalSuite, tmp_path: Path):
    (snippet,) = (block for block in snippets("sh") if block.startswith("curl "))

    program = snippet.replace(DEFAULT_HTTP_ADDRESS, str(suite.endpoint.http))
    subprocess.run(["bash", "-euo", "pipefail", "-c", program], cwd=tmp_path, check=True, timeout=120)

    assert [path.read_bytes()[1:4] for path in tmp_path.iterdir()] == [b"PNG"]


def test_targets_of_the_readme_exist():
    makefile = (README.parent / "Makefile").read_text()

    named = {target for block in snippets("sh") for target in re.findall(r"^make ([a-z-]+)", block, re.MULTILINE)}

    assert named
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in named)
