"""Start a process: import large libraries quickly, or serve nothing where its part of the suite is missing."""

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from pentimento.rpc import RpcServer, RpcServerSettings

logger = logging.getLogger(__name__)


@contextmanager
def importing_much() -> Iterator[None]:
    """Collect no garbage inside: imported objects stay, and each collection would scan them all again. That is a
    seventh of the processor time of a worker's start."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def serve_nothing(settings: RpcServerSettings, service: str, missing: str) -> None:
    """Log the missing part in one line, then stay healthy until SIGTERM, so that no other process waits for this one.
    The process does not register."""

    async def log_missing() -> None:
        logger.warning("%s: nothing is served here", missing)

    async def finish() -> None:
        """Do nothing: no work was accepted."""

    await RpcServer(settings, service).run_until_stopped(log_missing, finish)
