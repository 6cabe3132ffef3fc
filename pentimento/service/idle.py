"""A process that has nothing to serve, since its part of the suite is missing."""

import logging

from pentimento.rpc import RpcServer, RpcServerSettings

logger = logging.getLogger(__name__)


async def serve_nothing(settings: RpcServerSettings, service: str, missing: str) -> None:
    """Log the missing part in one line, then stay healthy until SIGTERM, so that nothing waits for this process. It
    registers nowhere."""

    async def log_missing() -> None:
        logger.warning("%s: nothing is served here", missing)

    async def finish() -> None:
        """Nothing was taken."""

    await RpcServer(settings, service).run_until_stopped(log_missing, finish)
