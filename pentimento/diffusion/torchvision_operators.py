"""Makes torchvision importable beside a torch that its compiled extension was not built for.

Its wheels hold an extension for CUDA builds. Beside a torch for CPUs that cannot load, and the import then fails for
two operators of detection networks that nothing here calls. Declaring them is all that models and transforms need.
transformers imports torchvision wherever it is installed, so this package does it before any of its modules.
"""

import importlib.util
from pathlib import Path
from typing import Any

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_OPERATORS = ("nms", "qnms")
_declared: list[Any] = []


def is_installed() -> bool:
    """Return whether torchvision is there, without importing it."""
    return importlib.util.find_spec("torchvision") is not None


def prepare() -> None:
    """Declare what torchvision's own extension cannot; nothing where it is not installed, or where it loads."""
    spec = importlib.util.find_spec("torchvision")
    if _declared or spec is None or spec.origin is None:
        return
    # Imported here: parts of this package start without torch.
    import torch

    if _loads(torch, Path(spec.origin).parent):
        return
    library = torch.library.Library("torchvision", "DEF")
    for name in _OPERATORS:
        library.define(name + _SCHEMA)
    _declared.append(library)


def _loads(torch: Any, package: Path) -> bool:
    """Whether its extension loads into this torch."""
    try:
        for extension in package.glob("_C*.so"):
            torch.ops.load_library(str(extension))
    except OSError:
        return False
    return True
