"""Whether calls are refused, for tests that list every row of a table which is not."""

from collections.abc import Callable
from typing import Any


def raises(error: type[Exception], call: Callable[..., object], *arguments: Any, **named: Any) -> bool:
    """Return whether the call raises this error. Other errors pass through."""
    try:
        call(*arguments, **named)
    except error:
        return True
    return False
