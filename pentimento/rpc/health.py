"""Serve grpc.health.v1, which load balancers, supervisors and compose query before they send calls.

The servicer of grpcio-health-checking holds its lock while it writes to a watcher, so that a watcher that does not read
would delay the others, and our own drain. Here each watcher has an event.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pentimento.domain.errors import NotFound

SERVICE_NAME = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
OVERALL = ""
# Always served by a process that answers, also while it loads, drains or waits as a standby.
LIVENESS = "liveness"
# Trailing metadata with the reason why a running process does not serve.
REASON_KEY = "pentimento-not-serving-reason"
Status = health_pb2.HealthCheckResponse
Context = grpc.aio.ServicerContext[Any, Any]


class HealthServicer(health_pb2_grpc.HealthServicer):
    """Report one state for the process, under "" and under the name of each service it serves; LIVENESS is always
    serving."""

    def __init__(self) -> None:
        self._names = {OVERALL, LIVENESS}
        self._serving = False
        self._held_back = ""
        self._watchers: set[asyncio.Event] = set()

    def add_service(self, name: str) -> None:
        self._names.add(name)

    @property
    def serving(self) -> bool:
        return self._serving and not self._held_back

    def set(self, serving: bool) -> None:
        """Change the state and wake its watchers."""
        self._serving = serving
        self._wake()

    def hold_back(self, reason: str) -> None:
        """Change the state: not serving while there is a reason. `Check` sends it as trailing metadata."""
        self._held_back = reason
        self._wake()

    def _wake(self) -> None:
        for watcher in self._watchers:
            watcher.set()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        if request.service not in self._names:
            raise NotFound("UNKNOWN_SERVICE", "no such service here")
        if self._held_back:
            context.set_trailing_metadata(((REASON_KEY, self._held_back.encode("ascii", "replace").decode()),))
        return Status(status=self._status(request.service))

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """Yield the state now and every later one; a slow watcher misses states between, never the last."""
        changed = asyncio.Event()
        self._watchers.add(changed)
        reported = None
        try:
            while True:
                changed.clear()
                if (status := self._status(request.service)) != reported:
                    reported = status
                    yield Status(status=status)
                await changed.wait()
        finally:
            self._watchers.discard(changed)

    def _status(self, name: str) -> int:
        if name not in self._names:
            return Status.SERVICE_UNKNOWN
        return Status.SERVING if self.serving or name == LIVENESS else Status.NOT_SERVING
