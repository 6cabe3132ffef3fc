"""The diagrams are those that their script draws, and say what they show."""

import subprocess
import sys
import xml.etree.ElementTree as tree
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs" / "images" / "concepts"
SVG = "{http://www.w3.org/2000/svg}"


def test_diagrams_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "draw_diagrams.py"), "--check"]

    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stderr) == (0, "")


def test_each_diagram_says_what_it_shows_and_stands_on_a_page() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "concepts").glob("*.md"))

    for path in sorted(FOLDER.glob("*")):
        assert f"../images/concepts/{path.name}" in pages
        if path.suffix == ".svg":
            title = tree.parse(path).getroot().find(f"{SVG}title")
            assert title is not None and title.text and len(title.text) > 40
