"""Whether calls are refused, for tests that list every row of a table which is not."""

import re
from collections.abc import Callable, Iterable
from typing import Any


def raises(error: type[Exception], call: Callable[..., object], *arguments: Any, **named: Any) -> bool:
    """Return whether the call raises this error. Other errors pass through."""
    try:
        call(*arguments, **named)
    except error:
        return True
    return False


def wrong_refusals(
    error: type[Exception], call: Callable[..., object], rows: Iterable[tuple[Any, ...]]
) -> list[tuple[str, str]]:
    """Return each row that is not refused as it says, with what the call said. The last value of a row is a pattern of
    the error's text, the others are the arguments. Other errors pass through."""
    wrong = []
    for *arguments, pattern in rows:
        try:
            call(*arguments)
        except error as refusal:
            said = str(refusal)
            if re.search(pattern, said):
                continue
        else:
            said = "accepted"
        wrong.append((f"{arguments!r:.200}, {pattern}", said))
    return wrong
