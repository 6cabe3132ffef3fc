"""What a reader calls says what it does: docstrings of the packages that others build on."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3] / "pentimento"
PACKAGES = ("policies", "dataplane", "stores", "clients", "sdk", "service", "diffusion", "tensors")
# Its pairs `x_to_proto`, `x_from_proto` are said once, in the package.
WIRE = "wire"
LEAST_SHARE = 0.95
# With which no imperative begins.
NO_VERBS = "A An The All Each Every Its Their Whose Whether What Which Who How When Where Of By None Changes"

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def public(body: list[ast.stmt]) -> Iterator[Definition]:
    for node in body:
        if isinstance(node, Definition) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public(node.body)


@cache
def definitions(package: str) -> tuple[tuple[str, Definition], ...]:
    return tuple(
        (f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node)
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in public(ast.parse(path.read_text()).body)
    )


def is_called(node: Definition) -> bool:
    """Whether it is a function or method: classes and properties are, they do nothing."""
    is_property = any("property" in ast.unparse(one) for one in node.decorator_list)
    return not isinstance(node, ast.ClassDef) and not is_property


@pytest.mark.parametrize("package", PACKAGES)
def test_what_is_public_has_a_docstring(package: str) -> None:
    known = {place: ast.get_docstring(node) for place, node in definitions(package)}

    missing = [place for place, text in known.items() if not text]
    assert len(missing) <= (1 - LEAST_SHARE) * len(known), missing


def test_what_is_called_says_first_what_it_does() -> None:
    firsts = {
        place: text.split(maxsplit=1)[0]
        for package in (*PACKAGES, WIRE)
        for place, node in definitions(package)
        if is_called(node) and (text := ast.get_docstring(node))
    }

    assert {place: first for place, first in firsts.items() if first in NO_VERBS.split(" ")} == {}
