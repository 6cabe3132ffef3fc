"""Create public addresses of images, valid until they expire."""

import math

from pentimento.domain.clock import Clock
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, NotFound
from pentimento.domain.jobs import ResultUrl, ResultUrlServer
from pentimento.domain.requests import RequestState
from pentimento.stores.ledger.journal.records import JournalledRequest
from services.frontdoor.objects.object_keeper import ObjectKeeper

# Lifetime of an address if the request names none.
USUAL_MS = 3_600_000


class ResultUrls:
    """Create addresses of images. `longest_s`: their longest lifetime in seconds, 0 for no addresses."""

    def __init__(self, keeper: ObjectKeeper, clock: Clock, longest_s: float) -> None:
        self._keeper = keeper
        self._clock = clock
        self._longest_s = longest_s

    @property
    def server(self) -> ResultUrlServer | None:
        """Return the server of this deployment's addresses; None if unknown because the store is away."""
        return self._keeper.address_server if self._longest_s else ResultUrlServer.NONE

    async def url_of(self, record: JournalledRequest, expires_in_ms: int | None) -> ResultUrl:
        """Return an address of a completed request's image. Raises FailedPrecondition URLS_OFF, NOT_COMPLETED, NotFound
        RESULT_GONE, Unavailable while the image waits for its store, InvalidArgument for a wrong time."""
        if not self._longest_s:
            raise FailedPrecondition("URLS_OFF", "this deployment has no addresses of images")
        longest_ms = round(self._longest_s * 1000)
        asked_ms = min(USUAL_MS, longest_ms) if expires_in_ms is None else expires_in_ms
        if not 1 <= asked_ms <= longest_ms:
            raise InvalidArgument.of("expires_in_ms", f"must be 1 to {longest_ms}, got {asked_ms}")
        if record.state is not RequestState.COMPLETED or record.result is None:
            raise FailedPrecondition("NOT_COMPLETED", "the request has no image")
        if not record.result.image.key:
            raise NotFound("RESULT_GONE", "the image of this request is no longer stored")
        # Stores count in seconds.
        expires_at = math.ceil(self._clock.wall() + asked_ms / 1000)
        media_type = f"image/{record.result.image_format}"
        url = await self._keeper.presign(record.result.image, media_type, expires_at)
        return ResultUrl(url, expires_at * 1000)
