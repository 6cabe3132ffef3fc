"""Warn of published figures with code that has changed since: a line a figure, most commits first.

    python scripts/stale_figures.py [--least 100]

The code of a figure is what its benchmark imports or names as a module of a process, and their imports, inside the
repository; also all of `services/` if it starts a whole suite. It always exits with 0: people decide how many commits
are too many.
"""

import argparse
import ast
import json
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("benchmarks", "lab", "pentimento", "services", "zoo")
STARTS_SUITES = "pentimento/supervisor"


def main() -> None:
    """Print a warning for each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--least", type=int, default=1, help="commits below which a figure is not named")
    least = parser.parse_args().least
    counted = [(commits_since(result), result.stem) for result in sorted((ROOT / "benchmarks/results").glob("*.json"))]
    for count, name in sorted(counted, key=lambda one: (-(one[0] or 0), one[1])):
        if count is None:
            print(f"warning: {name}: its commit or its benchmark is not in this repository")
        elif count >= least:
            print(f"warning: {name}: its code was touched by {count} commits since it was measured")


def commits_since(result: Path) -> int | None:
    """Return how often the code of the result was changed since; None if git does not know."""
    document = json.loads(result.read_text())
    benchmark = ROOT / "benchmarks" / f"{document.get('benchmark', result.stem)}.py"
    if not benchmark.exists() or "commit" not in document:
        return None
    paths = code_of(benchmark)
    asked = ["git", "rev-list", "--count", f"{document['commit'].split('+')[0]}..HEAD", "--", *paths]
    answer = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True)
    return int(answer.stdout) if answer.returncode == 0 else None


def code_of(module: Path) -> list[str]:
    """Return the files, relative to the root, that the module needs; `services` where it starts suites."""
    found, waiting = set[Path](), [module]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += imported_by(each)
    paths = sorted(str(each.relative_to(ROOT)) for each in found)
    return [*paths, "services"] if any(path.startswith(STARTS_SUITES) for path in paths) else paths


@cache
def imported_by(module: Path) -> tuple[Path, ...]:
    """Return the repository's files that a module imports."""
    names = names_in(ast.parse(module.read_text()))
    return tuple(path for name in names for path in files_of(name))


def names_in(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted names that a module imports, and of the processes that it starts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("services."):
            # Return the module that `python -m` runs.
            yield f"{node.value}.__main__"


def files_of(name: str) -> Iterator[Path]:
    """Yield the files of a dotted name: a module, or the `__init__` of a package; none for other repositories."""
    parts = name.split(".")
    if parts[0] not in PACKAGES:
        return
    # The last part may be a name inside the module.
    for length in (len(parts), len(parts) - 1):
        path = ROOT.joinpath(*parts[:length])
        if (file := path.with_suffix(".py")).exists() or (file := path / "__init__.py").exists():
            yield file
            return


if __name__ == "__main__":
    main()
