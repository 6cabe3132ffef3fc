"""Run a process that has no work, since its part of the suite is missing."""

import logging

from pentimento.rpc import RpcServer, RpcServerSettings

logger = logging.getLogger(__name__)


async def serve_nothing(settings: RpcServerSettings, service: str, missing: str) -> None:
    """Log the missing part in one line, then stay healthy until SIGTERM, so that no other process waits for this one.
    The process does not register."""

    async def log_missing() -> None:
        logger.warning("%s: nothing is served here", missing)

    async def finish() -> None:
        """Do nothing: no work was accepted."""

    await RpcServer(settings, service).run_until_stopped(log_missing, finish)
