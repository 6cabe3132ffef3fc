"""Import diffusers' networks without the libraries that only its pipelines, schedulers, LoRA loader and compiled models
use (ADR 0005)."""

import importlib
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

logger = logging.getLogger(__name__)

# diffusers works if none is installed; accelerate looks for boto3, for trainings in a cloud.
# torchvision imports the compiler; a video network, which is not served here, imports torchvision.
UNUSED_LIBRARIES = ("transformers", "peft", "torch._dynamo", "torchvision", "scipy", "boto3")


def import_networks_alone() -> None:
    """Import diffusers' networks as if `UNUSED_LIBRARIES` were not installed; afterwards those can be imported again.

    Until the process ends, its diffusers has neither pipelines nor a LoRA loader, and its networks lack the marks that
    torch.compile reads. If another installed library requires an unused one, diffusers is imported whole, and the log
    states why. Does nothing if diffusers is imported already. Call it while no other thread imports anything.
    """
    if "diffusers" in sys.modules:
        return
    try:
        with _as_if_absent(UNUSED_LIBRARIES), _compiler_asked_later():
            _import_networks()
    except ImportError as error:
        logger.warning("diffusers is imported whole, which takes more memory: %s", error)
        # Some imported modules have recorded the libraries as absent.
        for name in [name for name in sys.modules if name.partition(".")[0] == "diffusers"]:
            del sys.modules[name]
        _import_networks()


def _import_networks() -> None:
    # Late: it imports accelerate.
    from pentimento.diffusion.weights import NETWORKS

    for module, _ in NETWORKS.values():
        if module.startswith("diffusers."):
            importlib.import_module(module)


@contextmanager
def _as_if_absent(names: tuple[str, ...]) -> Iterator[None]:
    """Make imports of `names` raise ModuleNotFoundError while the context is open, by None in sys.modules (language
    reference, section 5.3.1). Modules imported before stay."""
    absent = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


@contextmanager
def _compiler_asked_later() -> Iterator[None]:
    """Defer `torch.compiler.disable` of functions, while the context is open, to their first call: marking a function
    imports the compiler."""
    import torch.compiler

    disable: Callable[..., Any] = torch.compiler.disable
    torch.compiler.disable = partial(_disable_later, disable)
    try:
        yield
    finally:
        torch.compiler.disable = disable


def _disable_later(
    disable: Callable[..., Any], function: Callable[..., Any] | None = None, *given: Any, **named: Any
) -> Callable[..., Any]:
    if function is None:
        return lambda marked: _disable_later(disable, marked, *given, **named)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return disable(function, *given, **named)(*args, **kwargs)

    return call
