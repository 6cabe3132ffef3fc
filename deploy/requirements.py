"""Print the requirements of extras of pyproject.toml for pip: `python deploy/requirements.py frontdoor`.

An image installs them first, so that its dependency layer does not change with the code.
"""

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
SELF_REFERENCE = re.compile(r"pentimento\[(?P<extras>[^\]]+)\]")


def expand(requirements: list[str], extras: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield plain requirements; `pentimento[a,b]` is replaced by its extras' requirements."""
    for requirement in requirements:
        own = SELF_REFERENCE.fullmatch(requirement)
        if own is None:
            yield requirement
            continue
        for extra in own["extras"].split(","):
            yield from expand(extras[extra.strip()], extras)


def requirements_of(names: list[str]) -> list[str]:
    """Return the requirements of the project and of extras, each once, in a stable order."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    extras = project["optional-dependencies"]
    unknown = sorted(set(names) - set(extras))
    if unknown:
        sys.exit(f"requirements: no extra called {', '.join(unknown)}; pyproject.toml has {', '.join(sorted(extras))}")
    wanted = [*project["dependencies"], *(f"pentimento[{name}]" for name in names)]
    return sorted(set(expand(wanted, extras)))


if __name__ == "__main__":
    print("\n".join(requirements_of(sys.argv[1:])))
