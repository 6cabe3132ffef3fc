"""Pentimento: serving text-to-image diffusion models that reuse what was already painted.

`pentimento.Client`, `pentimento.AsyncClient` and what they take, give and raise are those of `pentimento.sdk`. They are
imported when they are first used.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

from pentimento.torchvision_operators import watch_imports

if TYPE_CHECKING:
    from pentimento.sdk import *  # noqa: F403 # as many names as `pentimento.sdk` has

_SDK = "pentimento.sdk"

# gRPC reads it as it is imported. By default it runs handlers at each fork, under which the children of a process with
# an open stream crash one time in three, whatever they do.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
watch_imports()


def __getattr__(name: str) -> Any:
    # What the interpreter asks every package for is not asked of the client.
    if not name.startswith("_") and name in importlib.import_module(_SDK).__all__:
        return getattr(importlib.import_module(_SDK), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
