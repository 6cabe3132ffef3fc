"""What the pages tell a reader to type does what they say: each page's blocks in their order, in a folder of its own,
against the suite of this folder. scripts/pages/not_run.py has the commands that are left out, and why."""

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

# The shared suite listens elsewhere; nothing else of a text is touched.
DEFAULT_ADDRESS, DEFAULT_HTTP_ADDRESS = "127.0.0.1:50400", "127.0.0.1:50480"
LIMIT_S = 250
# As typed, but that a refusal over HTTP is a failure, and that the command is the one of this checkout.
PRELUDE = f"""
set -euo pipefail
python() {{ {shlex.quote(sys.executable)} "$@"; }}
pentimento() {{ python -m pentimento.cli "$@"; }}
curl() {{ command curl --silent --show-error --fail-with-body "$@"; }}
"""


def program(block: Block) -> str | None:
    """What of a block is run, as a part of a script for bash; None where nothing is."""
    if block.language == "python":
        return f"python - <<'END OF BLOCK'\n{block.text}END OF BLOCK\n"
    lines = [line for line in shell_lines(block.text) if why_not_run(line) is None]
    return "\n".join([*lines, ""]) if block.language == "sh" and lines else None


def scripts() -> Iterator[tuple[str, str]]:
    """Yield each page with something to run, and its script."""
    for page in dict.fromkeys(block.page for block in blocks()):
        parts = [(block, program(block)) for block in blocks() if block.page == page]
        # Where a script fails, its last line says which block it came to.
        script = "".join(f"echo '--- {block}'\n{part}" for block, part in parts if part is not None)
        if script:
            yield page, script


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A reader's folder, with files as they have them: a picture, its edges, a mask, and a token."""
    picture = Image.new("RGB", (64, 64), "white")
    ImageDraw.Draw(picture).ellipse((16, 16, 48, 48), fill="red")
    picture.save(tmp_path / "circle.png")
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
def test_what_a_page_says_to_type_works(suite: LocalSuite, folder: Path, page: str, script: str) -> None:
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
