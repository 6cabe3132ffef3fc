"""Script a standby's reads of the lease: in real time a leader with a busy disk would look silent."""

import asyncio
from concurrent.futures import Future

from pentimento.domain.clock import LeaseState
from pentimento.stores.ledger.epochs import EpochLedger


class LooksBetweenBeats:
    """Before each look but the first the holder of the lease beats, until `end`. `count`: looks so far."""

    def __init__(self) -> None:
        self.count = 0
        self._ended = False
        self._seen: LeaseState | None = None

    def replace_those_of(self, ledger: EpochLedger) -> None:
        """Changes state of the standby's ledger: it looks at the lease in this way. Belongs to the running loop."""
        lease, loop = ledger.lease, asyncio.get_running_loop()

        async def look() -> LeaseState:
            while (state := await asyncio.wrap_future(lease())) == self._seen and not self._ended:  # noqa: ASYNC110 - another's
                await asyncio.sleep(0.01)
            self._seen = state
            self.count += 1
            return state

        def looked() -> "Future[LeaseState]":
            return asyncio.run_coroutine_threadsafe(look(), loop)

        ledger.lease = looked  # type: ignore[method-assign]

    def end(self) -> None:
        """Changes state: from now on looks wait for no beat."""
        self._ended = True
