"""Call the controller: the fleet, the model repository and the registry of LoRAs. Keep a replica in the fleet:
register, report, deregister.

    registration = Registration(controller, replica=lambda: ..., report=lambda: ...)
    registration.start()            # once the service is warm; or `run()` inside an existing task
    registration.report_soon()      # optional: the report has just changed (draining)
    await registration.close()      # deregisters, within `CLOSE_TIMEOUT_S`

`run` never raises and never blocks the service: an unavailable, restarted or faulty controller causes only log lines.
The controller's state is soft: NOT_FOUND to a report means that it restarted, and the replica registers again. It also
registers again if its description changed in a way that reports do not contain.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import grpc.aio

from pentimento.api.adapters.v1 import adapter_registry_service_pb2 as adapters_pb
from pentimento.api.adapters.v1.adapter_registry_service_pb2_grpc import AdapterRegistryServiceStub
from pentimento.api.controller.v1 import controller_service_pb2 as pb
from pentimento.api.controller.v1.controller_service_pb2_grpc import ControllerServiceStub
from pentimento.api.generation.v1 import generation_pb2
from pentimento.api.models.v1 import model_repository_service_pb2 as models_pb
from pentimento.api.models.v1.model_repository_service_pb2_grpc import ModelRepositoryServiceStub
from pentimento.clients.calls import answer_of, domain_errors, uploaded
from pentimento.domain.adapters import Adapter, LoraUpload
from pentimento.domain.clock import Backoff, Clock
from pentimento.domain.components import FoundComponent
from pentimento.domain.errors import DeadlineExceeded, FailedPrecondition, NotFound, PentimentoError, Unavailable
from pentimento.domain.fleet import Fleet, Plan, Replica, ReplicaLease, ReplicaReport
from pentimento.domain.generation import PlanVersion
from pentimento.domain.models import CascadeVariant, ModelFile, ModelVariant, RegisteredModels
from pentimento.wire.codec import decode, encode, nested

logger = logging.getLogger(__name__)


# Bytes of an upload's message.
CHUNK_BYTES = 1 << 20
# Deadlines of uploads: a model's file of 25 GB at 7 MB/s, a LoRA of 4 GiB at 10 MB/s.
MODEL_TIMEOUT_S = 3600.0
LORA_TIMEOUT_S = 600.0


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


class ModelRepositoryClient:
    """Call the controller's model repository."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = ModelRepositoryServiceStub(channel)

    async def register_model(self, variant: ModelVariant, timeout_s: float | None = None) -> None:
        """Register a variant. Raises InvalidArgument with field and limit, FailedPrecondition NAME_TAKEN."""
        request = models_pb.RegisterModelRequest(model=nested(variant, models_pb.ModelVariant))
        await answer_of(self._stub.RegisterModel, request, timeout_s)

    async def missing_files(self, files: Sequence[ModelFile], timeout_s: float | None = None) -> frozenset[str]:
        """Return the sha256 of the files that the object store lacks. Raises FailedPrecondition COMPONENT_TOO_LARGE,
        NO_UPLOADS."""
        request = models_pb.FindMissingFilesRequest(files=[nested(file, models_pb.ModelFile) for file in files])
        return frozenset((await answer_of(self._stub.FindMissingFiles, request, timeout_s)).sha256s)

    async def add_file(self, file: ModelFile, chunks: Iterable[bytes], timeout_s: float = MODEL_TIMEOUT_S) -> None:
        """Upload a model's file, in chunks of at most `CHUNK_BYTES`. Raises InvalidArgument with field and limit."""
        first = models_pb.AddFileRequest(file=nested(file, models_pb.ModelFile))
        await uploaded(self._stub.AddFile, first, chunks, timeout_s)

    async def model(self, name: str, timeout_s: float | None = None) -> ModelVariant:
        """Return a registered model with the hashes of its files' blocks. Raises NotFound."""
        answer = await answer_of(self._stub.GetModel, models_pb.GetModelRequest(name=name), timeout_s)
        return decode(answer.model, ModelVariant)

    async def remove_model(self, name: str, timeout_s: float | None = None) -> None:
        """Remove a variant. Raises NotFound, FailedPrecondition MODEL_IN_USE."""
        await answer_of(self._stub.RemoveModel, models_pb.RemoveModelRequest(name=name), timeout_s)

    async def register_cascade(
        self, cascade: CascadeVariant, timeout_s: float | None = None, *, handover_profiles: Sequence[str] = ()
    ) -> CascadeVariant:
        """Register a cascade of registered models, and return it with the shares of its hand-over profiles. Raises like
        `register_model`."""
        request = models_pb.RegisterCascadeRequest(
            cascade=nested(cascade, models_pb.CascadeVariant), handover_profiles=handover_profiles
        )
        answer = await answer_of(self._stub.RegisterCascade, request, timeout_s)
        return decode(answer.cascade, CascadeVariant)

    async def remove_cascade(self, name: str, timeout_s: float | None = None) -> None:
        """Remove a cascade. Raises NotFound."""
        await answer_of(self._stub.RemoveCascade, models_pb.RemoveCascadeRequest(name=name), timeout_s)

    async def registered(self, timeout_s: float | None = None) -> RegisteredModels:
        """Return all registered models and cascades."""
        answer = await answer_of(self._stub.ListRegistered, models_pb.ListRegisteredRequest(), timeout_s)
        return decode(answer, RegisteredModels)


class AdapterRegistryClient:
    """Call the controller's registry of LoRAs."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = AdapterRegistryServiceStub(channel)

    async def add_lora(self, upload: LoraUpload, chunks: Iterable[bytes], timeout_s: float = LORA_TIMEOUT_S) -> Adapter:
        """Add a LoRA, with its file in chunks of at most `CHUNK_BYTES`, and return it as served. Raises
        InvalidArgument with field and limit, FailedPrecondition NAME_TAKEN."""
        first = adapters_pb.AddLoraRequest(upload=nested(upload, adapters_pb.LoraUpload))
        answer = await uploaded(self._stub.AddLora, first, chunks, timeout_s)
        return decode(answer.adapter, Adapter)

    async def loras(self, timeout_s: float | None = None) -> tuple[Adapter, ...]:
        """Return the uploaded LoRAs, ordered by name."""
        answer = await answer_of(self._stub.ListLoras, adapters_pb.ListLorasRequest(), timeout_s)
        return tuple(decode(adapter, Adapter) for adapter in answer.adapters)

    async def remove_lora(self, name: str, timeout_s: float | None = None) -> None:
        """Remove a LoRA. Raises NotFound."""
        await answer_of(self._stub.RemoveLora, adapters_pb.RemoveLoraRequest(name=name), timeout_s)


RETRIES = Backoff(first_s=0.1, max_s=2.0)
CALL_TIMEOUT_S = 1.0
CLOSE_TIMEOUT_S = 2.0
# The controller chooses the interval of reports within these limits.
MIN_INTERVAL_S = 0.05
MAX_INTERVAL_S = 10.0
DEFAULT_INTERVAL_S = 1.0


def generation_at(clock: Clock) -> int:
    """Return the wall-clock milliseconds of a process's start, which grow from start to start without stored state."""
    return int(clock.wall() * 1000)


def _nothing() -> None:
    return


@dataclass(frozen=True)
class RegistrationNews:
    """Hold the callbacks on the event loop: the controller registered the replica, or answered a report."""

    registered: Callable[[], None] = _nothing
    answered: Callable[[], None] = _nothing


NO_NEWS = RegistrationNews()


class Registration:
    """Keep one replica registered. `replica` and `report` are called for every message, on the event loop."""

    def __init__(
        self,
        controller: ControllerClient,
        replica: Callable[[], Replica],
        report: Callable[[], ReplicaReport],
        *,
        news: RegistrationNews = NO_NEWS,
    ) -> None:
        self._controller = controller
        self._replica = replica
        self._report = report
        self._news = news
        self._random = random.Random()
        self._lease: ReplicaLease | None = None
        self._known_as: tuple[str, int] | None = None
        # The replica's description at the controller, without the parts that reports contain.
        self._told: Replica | None = None
        self._failures = 0
        self._wake = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        """Start a task that keeps the replica registered; `close` ends it."""
        if self._loop is None and not self._closed:
            self._loop = asyncio.create_task(self._keep_registered(), name="registration")

    async def run(self) -> None:
        """Keep the replica registered until `close`, or until the calling task is cancelled."""
        self.start()
        if self._loop is None:
            return
        try:
            await asyncio.wait({self._loop})
        finally:
            self._loop.cancel()

    def report_soon(self) -> None:
        """Send the next report now."""
        self._wake.set()

    async def close(self) -> None:
        """Stop reporting and deregister, within `CLOSE_TIMEOUT_S`; without a deregistration the lease expires."""
        self._closed = True
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.wait({self._loop})
        if self._known_as is None:
            return
        instance_id, generation = self._known_as
        self._known_as = self._lease = None
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._controller.deregister(instance_id, generation)
        except Exception as error:  # harmless: the lease expires
            logger.info("could not deregister (%s: %s)", type(error).__name__, error)

    async def _keep_registered(self) -> None:
        while True:
            await self._attempt(self._beat)
            await self._pause(self._delay_s())

    async def _attempt(self, call: Callable[[], Awaitable[None]]) -> None:
        """Make one call; failures are counted, and logged once per outage, never raised."""
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await call()
        except Exception as error:  # after any error the service and the next attempt continue
            self._note_failure(error)
        else:
            if self._failures:
                logger.info("controller answers again after %d failed calls", self._failures)
            self._failures = 0

    async def _beat(self) -> None:
        if self._lease is None or _unreported(self._replica()) != self._told:
            await self._register()
        else:
            await self._send_report()

    async def _register(self) -> None:
        replica = self._replica()
        self._known_as, self._told = (replica.instance_id, replica.generation), None
        self._lease = await self._controller.register(replica)
        self._told = _unreported(replica)
        self._news.registered()
        logger.info("registered with the controller, leader epoch %s", self._lease.leader_epoch)

    async def _send_report(self) -> None:
        try:
            await self._controller.report(self._report())
        except (NotFound, FailedPrecondition):
            # The controller restarted, or another start of this instance replaced this one.
            self._lease = None
            await self._register()
        else:
            self._news.answered()

    def _note_failure(self, error: Exception) -> None:
        self._failures += 1
        if self._failures > 1:
            return
        if isinstance(error, FailedPrecondition):
            # Another live process has this identity: no requests come here until this process has its own.
            logger.error("the controller rejects this replica (%s): %s", error.reason, error.message)
        elif isinstance(error, PentimentoError | TimeoutError):
            logger.warning("controller cannot be reached (%s: %s); serving continues", type(error).__name__, error)
        else:
            logger.exception("registration failed; serving continues")

    def _delay_s(self) -> float:
        if self._failures:
            return RETRIES.random_delay_s(self._failures, self._random)
        return report_interval_s(self._lease)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()


def report_interval_s(lease: ReplicaLease | None) -> float:
    """Return the lease's interval between reports in seconds, bounded by two reports per lease and by our limits."""
    if lease is None or not _is_positive(lease.report_interval_ms) or not _is_positive(lease.lease_ms):
        return DEFAULT_INTERVAL_S
    asked_s = min(lease.report_interval_ms, lease.lease_ms / 2) / 1000
    return min(max(asked_s, MIN_INTERVAL_S), MAX_INTERVAL_S)


def _unreported(replica: Replica) -> Replica:
    # LoRAs change with every image; the credits report them.
    return replace(replica, resident_models=(), held_model_digest="", adapters=())


def _is_positive(value: float) -> bool:
    # NaN compares false with everything.
    return 0 < value < float("inf")
