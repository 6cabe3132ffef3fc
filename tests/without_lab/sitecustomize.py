"""Hide the lab, except the fixtures that tests share, from a process and its children.

Python imports this module at its start if PYTHONPATH names the folder.
"""

import importlib.metadata
import sys
from collections.abc import Iterable, Sequence
from importlib.abc import MetaPathFinder

SHARED = ("lab", "lab.fixtures")


class HiddenLab(MetaPathFinder):
    """Report the lab's modules as missing."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> None:
        if name.startswith("lab.") and not name.startswith(SHARED[1]):
            raise ModuleNotFoundError(f"{name} is hidden", name=name)


sys.meta_path.insert(0, HiddenLab())
_installed = importlib.metadata.distributions


def _without_lab(**context: object) -> Iterable[importlib.metadata.Distribution]:
    return (found for found in _installed(**context) if found.metadata["Name"] != "pentimento-lab")


importlib.metadata.distributions = _without_lab  # type: ignore[assignment]
