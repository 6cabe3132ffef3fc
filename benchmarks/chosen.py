"""What a benchmark measures with, chosen exactly: where several fit it is none of them."""

from collections.abc import Iterable
from typing import TypeVar

from pentimento.domain.errors import FailedPrecondition, NotFound

Found = TypeVar("Found")


def only(found: Iterable[Found], what: str) -> Found:
    """Return the one that was found. Raises NotFound for none and FailedPrecondition for several, naming `what`."""
    every = tuple(found)
    if not every:
        raise NotFound("NOTHING_FITS", f"there is no {what}")
    if len(every) > 1:
        raise FailedPrecondition("SEVERAL_FIT", f"there are {len(every)}, not one: {what}")
    return every[0]
