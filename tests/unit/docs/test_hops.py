"""The page's hops of a Generate name functions that are there, in the file beside them."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SECTION = (ROOT / "docs" / "structure.md").read_text().partition("## Hops of one Generate")[2].partition("\n## ")[0]
# `name`, `Class.name` (`path.py`): the file or files behind the names that come before it.
GROUP = re.compile(r"((?:`[\w.]+`[^`(|\n]*)+)\((`[\w/]+\.py`(?:, `[\w/]+\.py`)*)\)")
NAMED = [
    (name, tuple(re.findall(r"`([\w/.]+)`", paths)))
    for names, paths in GROUP.findall(SECTION)
    for name in re.findall(r"`([\w.]+)`", names)
]
# Calls of other services, by their names in the contracts.
CALLS = ("EmbedText", "Lookup")


def defined(path: str) -> set[str]:
    found = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            methods = (one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}.{one.name}" for one in methods}
    return found


def test_the_section_names_functions() -> None:
    assert len(NAMED) >= 20


@pytest.mark.parametrize("name, paths", [one for one in NAMED if one[0] not in CALLS])
def test_a_function_of_a_hop_is_where_the_page_says(name: str, paths: tuple[str, ...]) -> None:
    assert name in set().union(*map(defined, paths))
