"""Give the floating tensors that one thread makes a precision, without changing torch's default of the process: another
model may be generating on another thread.

    with ThreadDtype(torch.float16):
        network = network_class(config)
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

# Their precision is that of their data.
_FROM_DATA = frozenset({torch.asarray, torch.as_tensor})


class ThreadDtype(TorchFunctionMode):
    """Make tensors of `dtype` in place of torch's default precision."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        made = func(*args, **given)
        if given.get("dtype") is None and _chooses(func, args) and made.dtype is torch.get_default_dtype():
            return func(*args, **{**given, "dtype": self._dtype})
        return made


def _chooses(func: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Return whether a floating result of the function has torch's default precision."""
    if func not in _device_constructors() or func in _FROM_DATA:
        return False
    return func is not torch.tensor or isinstance(args[0] if args else None, float | list | tuple)


def keep_default_in_transformers() -> None:
    """Make transformers' loader set the precision of its thread in place of the process's (changes the library)."""
    from transformers import modeling_utils

    modeling_utils.local_torch_dtype = lambda dtype, *_: ThreadDtype(dtype)
