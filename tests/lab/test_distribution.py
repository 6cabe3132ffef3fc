"""Test the distribution of the lab."""

import tomllib
from importlib import import_module
from pathlib import Path

LAB = Path(__file__).parents[2] / "lab"
PROJECT = tomllib.loads((LAB / "pyproject.toml").read_text())


def test_distribution_has_every_package() -> None:
    folders = {".".join(found.parent.relative_to(LAB.parent).parts) for found in LAB.rglob("__init__.py")}

    assert set(PROJECT["tool"]["setuptools"]["packages"]) == folders


def test_entry_points_exist() -> None:
    for group, points in PROJECT["project"]["entry-points"].items():
        for target in points.values():
            module, _, attribute = target.partition(":")
            found = import_module(module)
            for part in attribute.split(".") if attribute else ():
                found = getattr(found, part)
            assert found is not None, group
