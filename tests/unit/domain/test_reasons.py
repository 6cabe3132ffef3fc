"""Reasons are names of the catalogue, and mean what it says."""

import ast
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pentimento.domain.reasons import Reason

ROOT = Path(__file__).parents[3]


def test_reason_is_its_name_in_text_and_in_databases() -> None:
    with closing(sqlite3.connect(":memory:")) as database:
        stored = {reason: database.execute("SELECT ?", (reason,)).fetchone()[0] for reason in Reason}

    assert [reason for reason in Reason if {reason.value, str(reason), stored[reason]} != {reason.name}] == []


def test_reason_has_a_meaning_and_an_advice() -> None:
    assert [reason for reason in Reason if not (reason.meaning and reason.advice)] == []


def literals(tree: ast.AST) -> Iterator[str]:
    """Yield comparisons of a `reason` with a string, or with a string constant of the module."""
    of_strings = {
        target.id
        for node in ast.iter_child_nodes(tree)
        if isinstance(node, ast.Assign) and has_string(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        named = {side.attr if isinstance(side, ast.Attribute) else getattr(side, "id", "") for side in sides}
        if "reason" in named and (any(map(has_string, sides)) or named & of_strings):
            yield f"line {node.lineno}"


def has_string(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value for part in ast.walk(node))


@pytest.mark.parametrize("package", ["pentimento", "services"])
def test_compared_reasons_are_in_catalogue(package: str) -> None:
    found = {
        str(path.relative_to(ROOT)): lines
        for path in (ROOT / package).rglob("*.py")
        if "reason" in (text := path.read_text()) and (lines := list(literals(ast.parse(text))))
    }

    assert found == {}
