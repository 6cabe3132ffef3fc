"""Check that the steps of a request on docs/structure.md name functions that exist, in the file next to them."""

import ast
import re
from collections.abc import Iterator

from .blocks import ROOT

SECTION = (ROOT / "docs" / "structure.md").read_text().partition("## Life of a request")[2].partition("\n## ")[0]
# A step's process, and the cell of its code.
STEP = re.compile(r"^\| \d+\. [^|]* \| (\w+) \| ([^|]*) \|", re.MULTILINE)
# `name`, `Class.name` (`path.py`): the file or files behind the names that come before it.
GROUP = re.compile(r"((?:`[\w.]+`[^`(|\n]*)+)\((`[\w/]+\.py`(?:, `[\w/]+\.py`)*)\)")
NAMED = [
    (process, name, tuple(re.findall(r"`([\w/.]+)`", paths)))
    for process, code in STEP.findall(SECTION)
    for names, paths in GROUP.findall(code)
    for name in re.findall(r"`([\w.]+)`", names)
]


def defined(process: str, path: str) -> set[str]:
    """Functions and methods of a file that is named from the root, or from the folder of its process."""
    (file,) = {place for place in (ROOT / path, ROOT / "services" / process / path) if place.exists()}
    found = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            methods = (one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}.{one.name}" for one in methods}
    return found


def steps_name_functions_of_their_files() -> Iterator[str]:
    if len(STEP.findall(SECTION)) < 14 or len(NAMED) < 20:
        yield f"docs/structure.md: a request has {len(STEP.findall(SECTION))} steps, {len(NAMED)} functions: too few"
    for process, name, paths in NAMED:
        if name not in set().union(*(defined(process, path) for path in paths)):
            yield f"docs/structure.md: no {name} in {', '.join(paths)}"


RULES = (steps_name_functions_of_their_files,)
