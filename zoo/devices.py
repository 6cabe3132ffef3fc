"""Choose torch's device: by default a GPU if there is one."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from pentimento.domain.errors import FailedPrecondition

DEVICES = ("auto", "cpu", "cuda")
_chosen = "auto"


def choose_device(name: str) -> None:
    """Set `device()` from here on: "cpu", "cuda", or "auto" for a GPU if there is one."""
    global _chosen
    if name == "cuda" and not torch.cuda.is_available():
        raise FailedPrecondition("NO_CUDA", "device: cuda was requested, but torch sees no GPU")
    _chosen = name


def device() -> torch.device:
    if _chosen == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(_chosen)


def half_precision() -> AbstractContextManager[object]:
    """Return bf16 autocast on a GPU. Without AMX a CPU multiplies bf16 at half the speed of fp32."""
    return torch.autocast("cuda", torch.bfloat16) if device().type == "cuda" else nullcontext()
