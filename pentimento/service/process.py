"""Run a service's process from start to stop."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from pentimento.clients.controller import Registration
from pentimento.rpc import RpcServer

logger = logging.getLogger(__name__)

# Begins the work; called again after an OSError.
Work = Callable[[], Coroutine[object, object, None]]
_AGAIN_S = 1.0


@dataclass(kw_only=True)
class ServiceProcess:
    """Hold a server and its work besides calls. A service overrides `prepare`, `finish` and `close` where it needs
    them. `registration` is None without a controller."""

    server: RpcServer
    registration: Registration | None = None
    _background: "list[asyncio.Task[None]]" = field(default_factory=list, init=False, repr=False)
    _until_closed: "list[asyncio.Task[None]]" = field(default_factory=list, init=False, repr=False)

    async def prepare(self) -> None:
        """Get ready to serve; meanwhile calls are answered, and health reports NOT_SERVING."""

    async def finish(self) -> None:
        """Finish accepted work, and accept no more."""

    async def close(self) -> None:
        """Release the resources of calls, after the last call was answered."""

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT, like `RpcServer.run_until_stopped`."""
        try:
            await self.server.run_until_stopped(self.warm, self.drain)
        finally:
            await end(self._background)
            await end(self._until_closed)
            await self.close()

    async def warm(self) -> None:
        """Prepare, then join the fleet."""
        await self.prepare()
        if self.registration is not None:
            self.registration.start()

    async def drain(self) -> None:
        """End background work, finish the calls' work while the fleet still receives reports, then leave the fleet."""
        await end(self._background)
        await self.finish()
        if self.registration is not None:
            await self.registration.close()

    def run_beside(self, work: Work, name: str) -> None:
        """Run the work as a task of that name until the drain, which cancels it."""
        self._background = [task for task in self._background if not task.done()]
        self._background.append(_begun(work, name))

    def run_until_closed(self, work: Work, name: str) -> None:
        """Run the work as a task of that name through the drain, until the last call was answered."""
        self._until_closed.append(_begun(work, name))


def _begun(work: Work, name: str) -> "asyncio.Task[None]":
    task = asyncio.create_task(_kept_up(work, name), name=name)
    task.add_done_callback(_tell)
    return task


async def _kept_up(work: Work, name: str) -> None:
    """Run the work, and begin it again after an OSError: a lack of descriptors or a full disk passes, and the process
    still needs the work."""
    while True:
        try:
            return await work()
        except OSError as error:
            logger.warning("background work failed and begins again", exc_info=error, extra={"task": name})
        await asyncio.sleep(_AGAIN_S)


def _tell(task: "asyncio.Task[None]") -> None:
    """Log the failure of a task, since no code awaits it before the process stops."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("background work failed and has stopped", exc_info=error, extra={"task": task.get_name()})


async def end(tasks: "list[asyncio.Task[None]]") -> None:
    """Cancel the tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
