"""Read cached objects that a request may start from, with a bounded wait."""

import asyncio
from concurrent.futures import Executor

from pentimento.domain.errors import Internal, NotFound, PentimentoError, Unavailable
from pentimento.domain.generation import FromImage, ObjectReference, Route, Start
from pentimento.domain.reasons import Reason
from pentimento.stores.errors import ObjectCorrupt, ObjectMissing
from pentimento.stores.objects import ObjectStore

SKIPPED = "cache skipped"


REPLAY_RETRY_MS = 5000


class UnusableDonor(Exception):
    """Explain why a donor is skipped: its object is bad, or the store is unavailable."""

    def __init__(self, reason: str, detail: str, *, object_is_bad: bool = False, away: bool = False) -> None:
        super().__init__(f"{SKIPPED}: {reason}: {detail}")
        self.bad_donor_reason = reason if object_is_bad else ""
        self._detail = detail
        self._away = away

    def of_replay(self, route: Route) -> PentimentoError:
        """Return the error of a replay, which has no other start: NotFound ANCESTOR_GONE with the missing object's
        name, Unavailable while the store is away, Internal for an existing donor that cannot be resumed."""
        what = f"the {_kind_of(route.start)} that {route.replay_of} started from"
        if self._away:
            message = f"{what} cannot be read now: {self._detail}"
            return Unavailable(Reason.INPUT_UNAVAILABLE, message, retry_after_ms=REPLAY_RETRY_MS)
        if self.bad_donor_reason:
            return NotFound(Reason.ANCESTOR_GONE, f"{what} is no longer stored: {self._detail}")
        return Internal("REPLAY_FAILED", f"{what} cannot be resumed: {self._detail}")


def _kind_of(start: Start) -> str:
    return "image" if isinstance(start, FromImage) else "latent"


class DonorReader:
    """Read donors on the threads of `executor`."""

    def __init__(self, objects: ObjectStore, executor: Executor, timeout_s: float) -> None:
        self._objects = objects
        self._executor = executor
        self._timeout_s = timeout_s

    async def read(self, reference: ObjectReference) -> bytes:
        """Return the object, its digest checked. Raises UnusableDonor if it is missing, corrupt or late."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await loop.run_in_executor(self._executor, self._objects.get, reference)
        except TimeoutError:
            raise UnusableDonor("STORE_SLOW", f"no answer in {self._timeout_s:g} s", away=True) from None
        except PentimentoError as error:
            is_bad = isinstance(error, ObjectMissing | ObjectCorrupt)
            raise UnusableDonor(error.reason, error.message, object_is_bad=is_bad, away=not is_bad) from None
