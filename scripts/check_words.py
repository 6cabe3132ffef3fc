"""Check that no package or page uses more odd phrases and private terms than `word_counts.toml` says.

    python scripts/check_words.py             # a higher count is a fault, with its phrases; the exit code is 1
    python scripts/check_words.py --update    # lower the stored counts to the present ones; add new packages

The texts of a package are docstrings and comments, those of a page are paragraphs without code. The measures: markers
(phrases that other codebases hardly use), openings (texts that begin with a question word or a bare preposition), terms
(private words for image, generate and score), names (functions and classes with such a word).
"""

import argparse
import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The modules of the first two folder levels are a package; all pages of a pattern count together.
PACKAGES = ("pentimento", "services", "lab", "zoo", "benchmarks", "tests/support")
PAGES = ("README.md", "docs/**/*.md", "services/*/README.md")
BUILT_WITH_SITE = ("docs/reference/api.md", "docs/reference/http.md")
SHOWN = 25  # phrases printed per fault; those of the files edited last come first

# A phrase precedes its own beginning: 'told of' before 'told'.
PHRASES = """of those|of these|of them|of his|of its own|of theirs|of ours|of which|by which|in which|to which|for which
from which|who is|who are|who has|who have|who was|those who|those that|the one that|is there|are there|what it was
what is|what was|is told|are told|was told|tells? of|told of|told|heard of|hears? of|hears?|is asked|are asked|be said
is said|says so|so that nobody|nobody's|nobody|somebody's|somebody|anybody|whose|whom|whoever|whomever|whichever
whatever|wherever|anew|hence|thereby|therein|thereof|lest|alike|beside|under way|for good|in its turn|for want of
as far as|but for|no more of|more than one may|so many|as many as|as it is|as they are|nothing of|goes on|go on|went on
gave up|given up|behind which|had better"""
MARKERS = re.compile(rf"\b({PHRASES})\b".replace("\n", "|"), re.IGNORECASE)
TERMS = re.compile(r"\b(pictures?|paint(?:s|ed|ing|ings)?|judg(?:e|es|ed|ing))\b", re.IGNORECASE)
OPENINGS = re.compile(r"^\s*((?:what|who|whose|whom|of|by|whoever|whatever|wherever|that which)\b.*)", re.IGNORECASE)
NAMES = re.compile(r"\w*(?:picture|paint|judge)\w*", re.IGNORECASE)

Phrases = dict[str, list[str]]  # by measure, each as "file:line: phrase"
Counts = dict[str, dict[str, int]]  # by package and measure


def definitions(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield the line, name and docstring of the module and of every class and function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield getattr(node, "lineno", 1), getattr(node, "name", ""), ast.get_docstring(node) or ""


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield the first line and the text of every block of comments."""
    block: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if block and token.start[0] != block[-1][0] + 1:
                yield block[0][0], " ".join(text for _, text in block)
                block = []
            block.append((token.start[0], token.string.lstrip("# ")))
    if block:
        yield block[0][0], " ".join(text for _, text in block)


def paragraphs(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every paragraph, without code and the targets of links."""
    blank = re.sub(r"```.*?```|`[^`\n]*`", lambda code: " " + "\n" * code[0].count("\n"), source, flags=re.DOTALL)
    line = 1
    for text in blank.split("\n\n"):
        yield line, re.sub(r"\]\([^)]*\)", "]", text)
        line += text.count("\n") + 2


def phrases(path: Path, place: str) -> Phrases:
    """Return the phrases of a module or a page; `place` is its path below the root."""
    source = path.read_text()
    defined = list(definitions(ast.parse(source))) if path.suffix == ".py" else []
    texts = [(line, docstring) for line, _, docstring in defined]
    texts += comments(source) if path.suffix == ".py" else paragraphs(source)
    named = [(line, name) for line, name, _ in defined]
    return {
        measure: [f"{place}:{line}: {found[:80]}" for line, text in where for found in pattern.findall(text)]
        for measure, (pattern, where) in {
            "markers": (MARKERS, texts),
            "openings": (OPENINGS, texts),
            "terms": (TERMS, texts),
            "names": (NAMES, named),
        }.items()
    }


def read_tree(root: Path = ROOT) -> dict[str, Phrases]:
    """Return the phrases of every package and every pattern of pages, those of the newest files first."""
    found: defaultdict[str, Phrases] = defaultdict(lambda: defaultdict(list))
    for pattern in (*(f"{package}/**/*.py" for package in PACKAGES), *PAGES):
        for path in sorted(root.glob(pattern), key=lambda path: (-path.stat().st_mtime, path)):
            place = path.relative_to(root)
            package = pattern if pattern in PAGES else "/".join(place.parts[:-1][:2])
            if "_pb2" not in path.name and place.as_posix() not in BUILT_WITH_SITE:
                for measure, more in phrases(path, str(place)).items():
                    found[package][measure] += more
    return dict(sorted(found.items()))


def faults(stored: Counts, found: dict[str, Phrases]) -> Iterator[str]:
    """Yield every count above the stored one with its phrases, and every package without stored counts."""
    for package, measures in found.items():
        if package not in stored:
            yield f"{package} has no counts in word_counts.toml: check_words.py --update adds them"
        for measure, which in measures.items() if package in stored else ():
            if len(which) > (most := stored[package][measure]):
                yield "\n    ".join((f"{package}: {len(which)} {measure}, at most {most}:", *which[:SHOWN]))


def lowered(stored: Counts, found: dict[str, Phrases]) -> Counts:
    """Return the lower of the stored and the present counts, and the present counts of new packages."""
    counts = {}
    for package, measures in found.items():
        present = {measure: len(which) for measure, which in measures.items()}
        counts[package] = {key: min(count, stored.get(package, present)[key]) for key, count in present.items()}
    return counts


def main(root: Path = ROOT) -> int:
    """Print the faults and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true")
    update, found = parser.parse_args().update, read_tree(root)
    page = root / "scripts" / "word_counts.toml"
    stored = tomllib.loads(page.read_text()) if page.exists() else {}
    if update:
        stored = lowered(stored, found)
        rows = [
            f'"{name}" = {{ {", ".join(f"{key} = {n}" for key, n in row.items())} }}\n' for name, row in stored.items()
        ]
        page.write_text("# `check_words.py` accepts at most these counts; --update lowers them.\n" + "".join(rows))
    wrong = list(faults(stored, found))
    print(
        *wrong, f"words: {len(found)} packages, {len(wrong)} faults", sep="\n", file=sys.stderr if wrong else sys.stdout
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
