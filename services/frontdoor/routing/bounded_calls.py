"""Call optional services with a bounded wait."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pentimento.domain.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PentimentoError,
    PermissionDenied,
    Unauthenticated,
)
from services.frontdoor.metrics import CACHE_SKIPS

logger = logging.getLogger(__name__)

T = TypeVar("T")

IMAGE_REUSE = "image reuse"
# Lost features that are counted as skips of the cache.
COUNTED = ("cache", IMAGE_REUSE)
Note = Callable[[str], None]
# A service that answers so is running: a restart would change nothing.
_REFUSALS = (InvalidArgument, NotFound, Unauthenticated, PermissionDenied, FailedPrecondition)


async def bounded(
    part: str, timeout_s: float, call: Awaitable[T], note: Note | None = None, *, loses: str = "cache"
) -> T | None:
    """Return the answer of an optional service; None, counted and noted, if it fails or is late. `loses`: the feature
    that the request then lacks."""
    try:
        async with asyncio.timeout(timeout_s):
            return await call
    except (TimeoutError, DeadlineExceeded):
        reason = "slow"
    except PentimentoError as error:
        reason = "refused" if isinstance(error, _REFUSALS) else "unavailable"
        logger.debug("%s skipped", loses, extra={"part": part, "reason": error.reason})
    if loses in COUNTED:
        CACHE_SKIPS.labels(part, reason).inc()
    if note is not None:
        note(f"{loses} skipped: {part} {reason}")
    return None
