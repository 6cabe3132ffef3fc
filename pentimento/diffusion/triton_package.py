"""Whether fused kernels can be had at all, told without torch."""

import importlib.util

from pentimento.domain.errors import FailedPrecondition


def has_triton() -> bool:
    """Return whether the package that compiles fused kernels is installed."""
    return importlib.util.find_spec("triton") is not None


def check_triton() -> None:
    """Raise FailedPrecondition NO_TRITON where it is not."""
    if not has_triton():
        raise FailedPrecondition("NO_TRITON", "fused kernels need the package triton, which is not installed")
