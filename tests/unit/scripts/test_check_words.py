"""check_words.py: counts of phrases in docstrings, comments and pages, which may only fall."""

import sys
import tomllib
from pathlib import Path

import pytest

from scripts.check_words import MARKERS, faults, lowered, main, phrases

MODULE = '''"""What is told."""
# Whoever paints it,
# nobody judges it.
def paint_ring(text="whose"):
    """Return the image.  Beside it lies a picture."""
class Judge: ...
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the root of a repository with one package and one page."""
    (tmp_path / "lab" / "runs").mkdir(parents=True)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "lab" / "runs" / "ring.py").write_text(MODULE)
    (tmp_path / "README.md").write_text(
        "# Ring\n\n```sh\necho whose\n```\n\nA picture, `whose`\nand [whose](whose.md).\n"
    )
    return tmp_path


def run(root: Path, monkeypatch: pytest.MonkeyPatch, *flags: str) -> int:
    monkeypatch.setattr(sys, "argv", ["check_words.py", *flags])
    return main(root)


def test_phrases_of_module_come_from_docstrings_comments_and_names(root: Path) -> None:
    found = phrases(root / "lab" / "runs" / "ring.py", "ring.py")

    assert found == {
        "markers": [
            "ring.py:1: What is",
            "ring.py:1: told",
            "ring.py:4: Beside",
            "ring.py:2: Whoever",
            "ring.py:2: nobody",
        ],
        "openings": ["ring.py:1: What is told.", "ring.py:2: Whoever paints it, nobody judges it."],
        "terms": ["ring.py:4: picture", "ring.py:2: paints", "ring.py:2: judges"],
        "names": ["ring.py:4: paint_ring", "ring.py:6: Judge"],
    }


def test_phrases_of_page_leave_out_code_and_targets_of_links(root: Path) -> None:
    found = phrases(root / "README.md", "README.md")

    assert found == {"markers": ["README.md:7: whose"], "openings": [], "terms": ["README.md:7: picture"], "names": []}


def test_markers_take_longest_phrase_at_a_place() -> None:
    counts = {"he hears of it": 1, "told of those": 1, "the whosever": 0, "Nobody's": 1}

    assert {text: len(MARKERS.findall(text)) for text in counts} == counts


def test_lowered_never_raises_and_adds_new_packages() -> None:
    found = {"a": {"markers": ["x", "y"], "terms": []}, "b": {"markers": ["z"], "terms": []}}

    assert lowered({"a": {"markers": 1, "terms": 3}, "gone": {"markers": 9, "terms": 9}}, found) == {
        "a": {"markers": 1, "terms": 0},
        "b": {"markers": 1, "terms": 0},
    }


def test_faults_of_raised_count_name_the_phrases() -> None:
    stored = {"a": {"markers": 1, "terms": 1}}

    assert list(faults(stored, {"a": {"markers": ["f.py:1: x", "f.py:2: y"], "terms": ["f.py:3: z"]}})) == [
        "a: 2 markers, at most 1:\n    f.py:1: x\n    f.py:2: y"
    ]


def test_main_of_package_without_counts_fails_until_update(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(root, monkeypatch) == 1
    assert run(root, monkeypatch, "--update") == 0
    assert run(root, monkeypatch) == 0
    assert tomllib.loads((root / "scripts" / "word_counts.toml").read_text()) == {
        "README.md": {"markers": 1, "openings": 0, "terms": 1, "names": 0},
        "lab/runs": {"markers": 5, "openings": 2, "terms": 3, "names": 2},
    }


def test_main_with_one_more_phrase_fails_also_with_update(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(root, monkeypatch, "--update")
    with (root / "lab" / "runs" / "ring.py").open("a") as module:
        module.write("# for want of a ring\n")

    assert run(root, monkeypatch, "--update") == 1
    assert "lab/runs: 6 markers, at most 5" in capsys.readouterr().err
