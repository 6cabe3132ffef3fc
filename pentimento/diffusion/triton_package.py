"""Check whether fused kernels are available, without importing torch."""

import importlib.util

from pentimento.domain.errors import FailedPrecondition


def check_triton() -> None:
    """Raise FailedPrecondition NO_TRITON if the package that compiles fused kernels is not installed."""
    if importlib.util.find_spec("triton") is None:
        raise FailedPrecondition("NO_TRITON", "fused kernels need the package triton, which is not installed")
