"""Choose profiles and rows exactly: several matches are an error."""

from collections.abc import Iterable
from typing import TypeVar

from pentimento.domain.errors import FailedPrecondition, NotFound

Found = TypeVar("Found")


def only(found: Iterable[Found], what: str) -> Found:
    """Return the single match. Raises NotFound for none and FailedPrecondition for several, naming `what`."""
    every = tuple(found)
    if not every:
        raise NotFound("NOTHING_FITS", f"no {what} found")
    if len(every) > 1:
        raise FailedPrecondition("SEVERAL_FIT", f"{len(every)} found, expected one: {what}")
    return every[0]
