"""Cached objects that a painting may start from, read with a bounded wait."""

import asyncio
from concurrent.futures import Executor

from pentimento.domain.errors import PentimentoError
from pentimento.domain.generation import ObjectReference
from pentimento.stores.errors import ObjectCorrupt, ObjectMissing
from pentimento.stores.objects import ObjectStore

SKIPPED = "cache skipped"


class UnusableDonor(Exception):
    """Why a donor is passed over, and whether its object is to blame."""

    def __init__(self, reason: str, detail: str, *, object_is_bad: bool = False) -> None:
        super().__init__(f"{SKIPPED}: {reason}: {detail}")
        self.bad_donor_reason = reason if object_is_bad else ""


class DonorReader:
    """Reads on the threads of `executor`."""

    def __init__(self, objects: ObjectStore, executor: Executor, timeout_s: float) -> None:
        self._objects = objects
        self._executor = executor
        self._timeout_s = timeout_s

    async def read(self, reference: ObjectReference) -> bytes:
        """The object, its digest checked. UnusableDonor when it is gone, corrupt or late."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await loop.run_in_executor(self._executor, self._objects.get, reference)
        except TimeoutError:
            raise UnusableDonor("STORE_SLOW", f"no answer in {self._timeout_s:g} s") from None
        except PentimentoError as error:
            is_bad = isinstance(error, ObjectMissing | ObjectCorrupt)
            raise UnusableDonor(error.reason, error.message, object_is_bad=is_bad) from None
