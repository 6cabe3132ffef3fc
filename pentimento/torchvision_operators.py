"""Make torchvision importable with a torch that its compiled extension was not built for.

Its wheels hold an extension for CUDA builds. With a torch for CPUs that cannot load, and the import then fails for two
operators of detection networks that nothing here calls. Declaring them is all that models and transforms need.
transformers and diffusers import an installed torchvision, so the declaration waits for any first import.
"""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_OPERATORS = ("nms", "qnms")
_declared: list[Any] = []


def is_installed() -> bool:
    """Return whether torchvision is installed, without importing it."""
    return importlib.util.find_spec("torchvision") is not None


class DeclaringFinder(MetaPathFinder):
    """Declare the operators when torchvision is first imported, and leave the import to the other finders."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # Libraries look for torchvision without importing it, after torch. Before torch there is nothing to prepare.
        if fullname == "torchvision" and "torch" in sys.modules:
            sys.meta_path.remove(self)
            declare_operators()
        return None


def watch_imports() -> None:
    """Put the finder first among those of the process, once."""
    if not any(isinstance(finder, DeclaringFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, DeclaringFinder())


def declare_operators() -> None:
    """Declare what torchvision's own extension cannot; nothing where it is not installed, or where it loads."""
    spec = importlib.util.find_spec("torchvision")
    if _declared or spec is None or spec.origin is None:
        return
    import torch

    if _loads(torch, Path(spec.origin).parent):
        return
    library = torch.library.Library("torchvision", "DEF")
    for name in _OPERATORS:
        library.define(name + _SCHEMA)
    _declared.append(library)


def _loads(torch: Any, package: Path) -> bool:
    """Return whether its extension loads into this torch."""
    try:
        for extension in package.glob("_C*.so"):
            torch.ops.load_library(str(extension))
    except OSError:
        return False
    return True
