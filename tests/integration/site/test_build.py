"""Test the site's own build with a tree of two pages, and its failures."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("sphinx", "myst_parser", "furo")
MISSING = [name for name in PACKAGES if importlib.util.find_spec(name) is None]

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")

NAVIGATION = '\nNAVIGATION = {"docs/index": {"Begin": ["docs/other"]}}\n'


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Write a tree with the site's own configuration, and two pages."""
    docs = tmp_path / "tree" / "docs"
    shutil.copytree(ROOT / "docs" / "static", docs / "static")
    (docs / "conf.py").write_text((ROOT / "docs" / "conf.py").read_text() + NAVIGATION)
    (docs / "other.md").write_text("# Another page\n\n## Of threads & needles\n\nBack to [the first](index.md).\n")
    return docs.parent


def build(tree: Path, first_page: str) -> "subprocess.CompletedProcess[str]":
    (tree / "docs" / "index.md").write_text(first_page)
    command = [
        sys.executable,
        str(ROOT / "scripts" / "build_site.py"),
        "--source",
        str(tree),
        str(tree.parent / "site"),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)


def test_a_site_of_pages_that_hold_together(tree: Path) -> None:
    done = build(
        tree, "# First\n\n[a place](other.md#of-threads--needles), [a folder](static), [far](https://example.com/)\n"
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert Path(done.stdout.strip()).name == "index.html"
    text = (tree.parent / "site" / "docs" / "index.html").read_text()
    assert 'href="other.html#of-threads-needles"' in text
    # A folder without a page is named, not linked.
    assert "a folder" in text and 'href="static"' not in text


def test_broken_link_fails_the_build_and_is_named(tree: Path) -> None:
    (tree / "docs" / "lost.md").write_text("# In no navigation\n")

    done = build(tree, "# First\n\n[a](none.md), [b](other.md#none), ![c](none.png), [d](other.md)\n")

    assert done.returncode != 0
    for lost in ("none.md", "none", "none.png", "lost.md"):
        assert any(lost in line for line in done.stderr.splitlines()), done.stderr
    assert "other.md:" not in done.stderr
