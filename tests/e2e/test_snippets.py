"""Run the commands of the documentation: each page's blocks in order, in a new folder, against this folder's suite.
scripts/pages/not_run.py has the skipped commands with reasons."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

from pentimento.supervisor.local import LocalSuite
from scripts.pages.blocks import Block, blocks, shell_lines
from scripts.pages.not_run import why_not_run
from tests.support.edge_packages import missing

# The shared suite listens on other ports; the text is otherwise unchanged.
DEFAULT_ADDRESS, DEFAULT_HTTP_ADDRESS = "127.0.0.1:50400", "127.0.0.1:50480"
LIMIT_S = 250
# The commands run as typed, except that an HTTP error fails, and that the command is this checkout's.
PRELUDE = f"""
set -euo pipefail
python() {{ {shlex.quote(sys.executable)} "$@"; }}
pentimento() {{ python -m pentimento.cli "$@"; }}
curl() {{ command curl --silent --show-error --fail-with-body "$@"; }}
"""


def program(block: Block) -> str | None:
    """Return the part of a block to run as bash, or None."""
    if block.language == "python":
        return f"python - <<'END OF BLOCK'\n{block.text}END OF BLOCK\n"
    lines = [line for line in shell_lines(block.text) if why_not_run(line) is None]
    return "\n".join([*lines, ""]) if block.language == "sh" and lines else None


def scripts() -> Iterator[tuple[str, str]]:
    """Yield each page with something to run, and its script."""
    for page in dict.fromkeys(block.page for block in blocks()):
        parts = [(block, program(block)) for block in blocks() if block.page == page]
        # The last line of a failed script names its block.
        script = "".join(f"echo '--- {block}'\n{part}" for block, part in parts if part is not None)
        if script:
            yield page, script


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a reader's folder with an image, its edges, a mask and a token."""
    image = Image.new("RGB", (64, 64), "white")
    ImageDraw.Draw(image).ellipse((16, 16, 48, 48), fill="red")
    image.save(tmp_path / "circle.png")
    edges, mask = Image.new("RGB", (64, 64)), Image.new("L", (64, 64))
    ImageDraw.Draw(edges).ellipse((16, 16, 48, 48), outline="white", width=2)
    ImageDraw.Draw(mask).rectangle((0, 0, 32, 64), fill=255)
    edges.save(tmp_path / "edges.png")
    mask.save(tmp_path / "mask.png")
    (tmp_path / "deploy" / "secrets").mkdir(parents=True)
    (tmp_path / "deploy" / "secrets" / "user_token").write_text("of-nobody")
    return tmp_path


@pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())}")
@pytest.mark.parametrize(("page", "script"), [pytest.param(*one, id=one[0]) for one in scripts()])
def test_commands_of_page_succeed(suite: LocalSuite, folder: Path, page: str, script: str) -> None:
    before = set(folder.iterdir())
    text = script.replace(DEFAULT_ADDRESS, suite.endpoint.public).replace(
        DEFAULT_HTTP_ADDRESS, str(suite.endpoint.http)
    )
    environment = {**os.environ, "PENTIMENTO_STATE_DIR": str(suite.state.path), "TOKEN": "of-nobody"}

    done = subprocess.run(
        ["bash", "-c", PRELUDE + text],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT_S,
        check=False,
    )

    assert done.returncode == 0, done.stdout.decode(errors="replace")
    for path in set(folder.iterdir()) - before:
        if path.suffix == ".png":
            Image.open(path).verify()
