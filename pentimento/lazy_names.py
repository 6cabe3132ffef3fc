"""Import a package's names when they are first used."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def imported_when_used(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's `__getattr__` (PEP 562): `homes` are the modules of its names, below the package, each with
    its names between spaces.

    __getattr__ = imported_when_used(__name__, {"reading": "check_lora read_lora"})
    """
    modules = {name: f"{package}.{module}" for module, names in homes.items() for name in names.split()}

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(modules[name]), name)

    return find
