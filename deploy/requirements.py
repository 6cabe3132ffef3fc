"""Prints what pip must install for some extras of pyproject.toml: `python deploy/requirements.py frontdoor`.

An image installs that first, so that its dependency layer does not change with the code.
"""

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
SELF_REFERENCE = re.compile(r"pentimento\[(?P<extras>[^\]]+)\]")


def expand(requirements: list[str], extras: Mapping[str, list[str]]) -> Iterator[str]:
    """Yields plain requirements; `pentimento[a,b]` stands for those of its extras."""
    for requirement in requirements:
        own = SELF_REFERENCE.fullmatch(requirement)
        if own is None:
            yield requirement
            continue
        for extra in own["extras"].split(","):
            yield from expand(extras[extra.strip()], extras)


def requirements_of(names: list[str]) -> list[str]:
    """Requirements of the project and of the extras called `names`, each once, in a stable order."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    extras = project["optional-dependencies"]
    unknown = sorted(set(names) - set(extras))
    if unknown:
        sys.exit(f"requirements: no extra called {', '.join(unknown)}; pyproject.toml has {', '.join(sorted(extras))}")
    wanted = [*project["dependencies"], *(f"pentimento[{name}]" for name in names)]
    return sorted(set(expand(wanted, extras)))


if __name__ == "__main__":
    print("\n".join(requirements_of(sys.argv[1:])))
