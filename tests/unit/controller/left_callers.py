"""Cancel callers between a commit and its answer."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

import pytest

from pentimento.stores.ledger.fleet_ledger import FleetLedger


async def cancelled_once_committed(
    ledger: FleetLedger, method: str, call: Callable[[], Awaitable[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Make the call, and cancel it when the ledger has committed and has not answered yet."""
    written, may_answer = threading.Event(), threading.Event()
    real: Callable[..., Future[Any]] = getattr(ledger, method)

    def answered_late(*arguments: object) -> Future[Any]:
        answer = Future[Any]()
        answer.set_running_or_notify_cancel()

        def later(done: Future[Any]) -> None:
            written.set()
            may_answer.wait(60)
            answer.set_result(done.result())

        real(*arguments).add_done_callback(later)
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(ledger, method, answered_late)
        calling = asyncio.ensure_future(call())
        await asyncio.to_thread(written.wait, 60)
        calling.cancel()
        await asyncio.sleep(0)
        may_answer.set()
        with pytest.raises(asyncio.CancelledError):
            await calling
