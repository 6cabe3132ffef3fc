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

# diffusers does without each of them where it is not installed; accelerate looks for boto3, for trainings in a cloud.
# torchvision imports the compiler; a network of videos, which nobody serves here, imports torchvision.
UNUSED_LIBRARIES = ("transformers", "peft", "torch._dynamo", "torchvision", "scipy", "boto3")
_NETWORKS = (
    "diffusers.models.attention_processor",
    "diffusers.models.autoencoders.autoencoder_kl",
    "diffusers.models.autoencoders.autoencoder_tiny",
    "diffusers.models.controlnets.controlnet",
    "diffusers.models.controlnets.controlnet_sd3",
    "diffusers.models.transformers.transformer_sd3",
    "diffusers.models.unets.unet_2d_condition",
)


def import_networks_alone() -> None:
    """Import diffusers' networks as if `UNUSED_LIBRARIES` were not installed; afterwards those can be imported as ever.

    For as long as the process lives, its diffusers has neither pipelines nor a LoRA loader, and its networks lack the
    marks that torch.compile reads. Where another library that is installed cannot do without one of them, diffusers is
    imported whole, and the log says why. Does nothing where diffusers is imported already. Call it while no other
    thread imports anything.
    """
    if "diffusers" in sys.modules:
        return
    try:
        with _as_if_absent(UNUSED_LIBRARIES), _compiler_asked_later():
            _import_networks()
    except ImportError as error:
        logger.warning("diffusers is imported whole, which takes more memory: %s", error)
        # Of what was imported, some has taken the libraries for absent.
        for name in [name for name in sys.modules if name.partition(".")[0] == "diffusers"]:
            del sys.modules[name]
        _import_networks()


def _import_networks() -> None:
    for name in _NETWORKS:
        importlib.import_module(name)


@contextmanager
def _as_if_absent(names: tuple[str, ...]) -> Iterator[None]:
    """Let imports of `names` raise ModuleNotFoundError while the context is open: None in sys.modules says so
    (language reference, section 5.3.1). What is imported already stays."""
    absent = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


@contextmanager
def _compiler_asked_later() -> Iterator[None]:
    """Let functions that are marked with `torch.compiler.disable` while the context is open be given to the compiler
    when they are first called: marking one imports the compiler."""
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
