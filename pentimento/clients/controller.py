"""Call the controller."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc.aio

from pentimento.api.controller.v1 import controller_service_pb2 as pb
from pentimento.api.controller.v1.controller_service_pb2_grpc import ControllerServiceStub
from pentimento.api.generation.v1 import generation_pb2
from pentimento.clients.errors import domain_errors
from pentimento.domain.components import FoundComponent
from pentimento.domain.errors import DeadlineExceeded, Unavailable
from pentimento.domain.fleet import Fleet, Plan, Replica, ReplicaLease, ReplicaReport
from pentimento.domain.generation import PlanVersion
from pentimento.wire.codec import decode, encode, nested


class ControllerClient:
    """Call the controller: registration, heartbeats, plans and the fleet.

    With several channels it calls one of them. After Unavailable, which a standby answers too, or a timeout it turns to
    the next one: the caller's next try goes there, and the stream of plans ends.
    """

    def __init__(self, *channels: grpc.aio.Channel) -> None:
        self._stubs = [ControllerServiceStub(channel) for channel in channels]
        self._turn = 0
        self._watching: set[Any] = set()

    async def register(self, replica: Replica, timeout_s: float | None = None) -> ReplicaLease:
        """Register the replica and return its lease."""
        request = pb.RegisterRequest(replica=nested(replica, pb.Replica))
        with self._turning() as turn:
            return decode(await self._stubs[turn].Register(request, timeout=timeout_s), ReplicaLease)

    async def report(self, report: ReplicaReport, timeout_s: float | None = None) -> int:
        """Send a heartbeat and return the leader's epoch. NotFound asks the replica to register again."""
        with self._turning() as turn:
            return (await self._stubs[turn].Report(encode(report, pb.ReportRequest), timeout=timeout_s)).leader_epoch

    async def deregister(self, instance_id: str, generation: int, timeout_s: float | None = None) -> None:
        """Remove the replica from the fleet."""
        request = pb.DeregisterRequest(instance_id=instance_id, generation=generation)
        with self._turning() as turn:
            await self._stubs[turn].Deregister(request, timeout=timeout_s)

    async def watch_plan(self, instance_id: str, have: PlanVersion | None = None) -> AsyncIterator[Plan]:
        """Yield the plan in force, then each newer one; a plan `have`, which the caller has, is skipped."""
        version = encode(have, generation_pb2.PlanVersion) if have else None
        with self._turning() as turn:
            call = self._stubs[turn].WatchPlan(pb.WatchPlanRequest(instance_id=instance_id, have=version))
            self._watching.add(call)
            try:
                async for message in call:
                    yield decode(message.plan, Plan)
            except asyncio.CancelledError:
                if turn == self._turn:
                    raise
                raise Unavailable("TURNED", "another controller is called now") from None
            finally:
                self._watching.discard(call)

    async def find_components(
        self, instance_id: str, *, digests: Sequence[str] = (), model: str = "", timeout_s: float | None = None
    ) -> tuple[FoundComponent, ...]:
        """Return the components with these digests that replicas other than `instance_id` hold. Without digests: the
        LoRAs that requests use most with a model."""
        request = pb.FindComponentsRequest(instance_id=instance_id, digests=digests, model=model)
        with self._turning() as turn:
            answer = await self._stubs[turn].FindComponents(request, timeout=timeout_s)
            return tuple(decode(one, FoundComponent) for one in answer.components)

    async def fleet(self, timeout_s: float | None = None) -> Fleet:
        """Return the fleet as the controller knows it."""
        with self._turning() as turn:
            return decode(await self._stubs[turn].GetFleet(pb.GetFleetRequest(), timeout=timeout_s), Fleet)

    @contextmanager
    def _turning(self) -> Iterator[int]:
        """Yield the index of the controller to call; raise domain errors."""
        turn = self._turn
        try:
            with domain_errors():
                yield turn
        except (Unavailable, DeadlineExceeded, asyncio.CancelledError):
            if turn == self._turn and len(self._stubs) > 1:
                self._turn = (turn + 1) % len(self._stubs)
                for call in self._watching:
                    call.cancel()
            raise
