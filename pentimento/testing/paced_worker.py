"""A paced double of the UNet worker for tests of scheduling: the real contract over real sockets, no painting.

What it paints is a function of the request alone, so that reruns can be compared; whether pictures are right is tested
with the real worker. In a test's own process `hold` stops it before its last step; as a process of its own
(`python -m pentimento.testing.paced_worker ADDRESS NAME STEP_SECONDS`) every step takes that long.
"""

import asyncio
import hashlib
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from pentimento.api.worker.v1 import unet_worker_service_pb2 as pb
from pentimento.api.worker.v1.unet_worker_service_pb2_grpc import (
    UnetWorkerServiceServicer,
    add_UnetWorkerServiceServicer_to_server,
)
from pentimento.domain.adapters import Adapter
from pentimento.domain.errors import (
    Cancelled,
    FailedPrecondition,
    NotFound,
    PentimentoError,
    ResourceExhausted,
)
from pentimento.domain.execution import (
    AttemptResult,
    ExecuteEvent,
    RunningAttempt,
    Started,
    StepProgress,
    WorkerCredits,
)
from pentimento.domain.fleet import Capability, HeldModel
from pentimento.domain.generation import Attempt, CapturedEntries, CapturedLatent, GenerationSpec, ObjectReference
from pentimento.rpc import RpcServer, RpcServerSettings
from pentimento.stores.objects.store import digest_of
from pentimento.testing.held_models import HELD
from pentimento.wire.fleet import attach_event_to_proto, credits_to_proto, execute_event_to_proto
from pentimento.wire.generation import attempt_from_proto, spec_from_proto

# As the contract has it, and a little sooner: on a busy machine it may say nothing for a while.
SPEAKS_EVERY_S = 0.25
FULL_NAME = pb.DESCRIPTOR.services_by_name["UnetWorkerService"].full_name


class Running:
    """One attempt; it runs on when nobody reads it."""

    def __init__(self, attempt: Attempt, spec: GenerationSpec, grant: pb.ExecuteRequest) -> None:
        self.attempt = attempt
        self.spec = spec
        self.grant = grant
        self.step = 0
        self.outcome: AttemptResult | PentimentoError | None = None
        self.news = asyncio.Event()

    def end(self, outcome: AttemptResult | PentimentoError) -> None:
        if self.outcome is None:
            self.outcome = outcome
            self.news.set()


class PacedWorker(UnetWorkerServiceServicer):
    """`fail_with` is what the next attempt ends with, `held` the model it says it holds. RPCs that it lacks answer
    UNIMPLEMENTED."""

    def __init__(self, worker_id: str, credit_count: int = 1, step_s: float = 0.0) -> None:
        self.worker_id = worker_id
        self.credit_count = credit_count
        self.preparing_count = 0
        self.step_s = step_s
        self.held: HeldModel = HELD
        self.capabilities = frozenset(Capability)
        self.known_adapters: tuple[Adapter, ...] = ()
        self.resident: tuple[str, ...] = ()
        # Latents captured up to there owe nothing to LoRAs.
        self.loras_after = 1 << 30
        self.hold = asyncio.Event()
        self.hold.set()
        self.fail_with: PentimentoError | None = None
        self.speaks = True
        self.picture_bytes = 0
        self.device_s = 0.0
        # Why it cannot use what the cache gives; empty where it can.
        self.passes_over = ""
        # Of pictures with ControlNets.
        self.residual_wait_share: float | None = None
        self.energy_j: float | None = None
        self.running: dict[tuple[str, int], Running] = {}
        self.finished: dict[tuple[str, int], Running] = {}
        self.executed: list[GenerationSpec] = []
        self.orders: list[pb.ExecuteRequest] = []
        # Cancels may overtake their attempts, as at the real worker.
        self._cancelled_early: set[tuple[str, int]] = set()
        self.most_running = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    def change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_until(self, condition: Any) -> None:
        while not condition():
            await self._changed.wait()

    async def WatchCredits(self, request: Any, context: Any) -> AsyncIterator[pb.WatchCreditsResponse]:
        while True:
            changed = self._changed
            if self.speaks:
                yield credits_to_proto(self._credits())
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), SPEAKS_EVERY_S)

    def _credits(self) -> WorkerCredits:
        attempts = tuple(
            RunningAttempt(*key, running.step, running.spec.num_inference_steps)
            for key, running in self.running.items()
        )
        return WorkerCredits(
            self.worker_id,
            self.held,
            self.credit_count,
            len(attempts),
            capabilities=self.capabilities,
            attempts=attempts,
            known_adapters=self.known_adapters,
            resident_components=self.resident,
            preparing_count=self.preparing_count,
        )

    async def Execute(self, request: pb.ExecuteRequest, context: Any) -> AsyncIterator[pb.ExecuteResponse]:
        self.orders.append(request)
        self._check(request)
        running = Running(attempt_from_proto(request.attempt), spec_from_proto(request.spec), request)
        key = (running.attempt.request_id, running.attempt.fencing_token)
        self.running[key] = running
        if key in self._cancelled_early:
            self._cancel(running)
        self.most_running = max(self.most_running, len(self.running))
        self.executed.append(running.spec)
        task = asyncio.get_running_loop().create_task(self._paint(running))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.change()
        async for event in self._events(running):
            yield execute_event_to_proto(event)

    def _check(self, request: pb.ExecuteRequest) -> None:
        if request.worker_generation != self.held.worker_generation:
            raise FailedPrecondition("WORKER_GENERATION_MISMATCH", "another generation")
        if request.route.model_digest != self.held.model_digest:
            raise FailedPrecondition("MODEL_DIGEST_MISMATCH", "another model")
        if len(self.running) >= self.credit_count + self.preparing_count:
            raise ResourceExhausted("NO_CREDIT", "no credit left")

    async def Attach(self, request: pb.AttachRequest, context: Any) -> AsyncIterator[pb.AttachResponse]:
        key = (request.request_id, request.fencing_token)
        running = self.running.get(key) or self.finished.get(key)
        if running is None:
            raise NotFound("ATTEMPT_GONE", "no such attempt")
        async for event in self._events(running):
            yield attach_event_to_proto(event)

    async def CancelAttempt(self, request: pb.CancelAttemptRequest, context: Any) -> pb.CancelAttemptResponse:
        key = (request.request_id, request.fencing_token)
        running = self.running.get(key)
        if running is not None:
            self._cancel(running)
        else:
            self._cancelled_early.add(key)
        return pb.CancelAttemptResponse(found=running is not None)

    def _cancel(self, running: Running) -> None:
        running.end(Cancelled("CANCELLED", "the attempt was cancelled"))
        self._forget(running)

    async def _events(self, running: Running) -> AsyncIterator[ExecuteEvent]:
        count = running.spec.num_inference_steps
        yield Started(self.worker_id, 0, count)
        told = 0
        while running.outcome is None:
            if told < running.step:
                told = running.step
                yield StepProgress(told, count)
            running.news.clear()
            if running.outcome is None and told == running.step:
                await running.news.wait()
        if isinstance(running.outcome, PentimentoError):
            raise running.outcome
        yield running.outcome

    async def _paint(self, running: Running) -> None:
        for step in range(running.spec.num_inference_steps):
            await asyncio.sleep(self.step_s)
            if running.outcome is not None:
                return
            running.step = step
            running.news.set()
            self.change()
        await self.hold.wait()
        if running.outcome is not None:
            return
        failure, self.fail_with = self.fail_with, None
        running.end(failure or self._result(running))
        self._forget(running)

    def _forget(self, running: Running) -> None:
        key = (running.attempt.request_id, running.attempt.fencing_token)
        # A test may have made the worker lose it.
        if self.running.pop(key, None) is not None:
            self.finished[key] = running
        self.change()

    def _result(self, running: Running) -> AttemptResult:
        picture = picture_of(running.spec).ljust(self.picture_bytes, b"\0")
        start = running.grant.route.start
        saved = 0 if self.passes_over else start.latent.resume_step or start.image.start_step
        return AttemptResult(
            attempt=running.attempt,
            image=picture,
            width_px=running.spec.width_px,
            height_px=running.spec.height_px,
            image_digest=digest_of(picture),
            captured=self._captured(running),
            steps_run=running.spec.num_inference_steps - saved,
            steps_saved=saved,
            model_digest=self.held.model_digest,
            worker_generation=self.held.worker_generation,
            device_seconds=self.device_s,
            energy_joules=self.energy_j,
            bad_donor_reason=self.passes_over,
            residual_wait_share=self.residual_wait_share if running.spec.controlnets else None,
        )

    def _captured(self, running: Running) -> CapturedEntries:
        if not running.grant.HasField("cache_grant"):
            return CapturedEntries("")
        grant = running.grant.cache_grant
        latents = tuple(
            CapturedLatent(slot.resume_step, 1.0, reference, adapter_free=slot.resume_step <= self.loras_after)
            for slot in grant.latents
            for reference in (ObjectReference(slot.key, "sha256:0", 1),)
        )
        image = ObjectReference(grant.image_key, "sha256:0", 4096) if grant.image_key else None
        return CapturedEntries(grant.grant_id, latents, image)


def picture_of(spec: GenerationSpec) -> bytes:
    """What this double paints: the same for the same request."""
    return hashlib.sha256(repr((spec.prompt, spec.seed, spec.num_inference_steps)).encode()).digest() * 8


async def serve(worker: PacedWorker, address: str) -> RpcServer:
    server = RpcServer(RpcServerSettings(listen=(address,)), "paced_worker")
    server.add(add_UnetWorkerServiceServicer_to_server, worker, FULL_NAME)
    await server.start()
    server.set_serving()
    return server


async def main(address: str, worker_id: str, step_s: float) -> None:
    worker = PacedWorker(worker_id, step_s=step_s)  # type: ignore[abstract]
    # As with the real worker, generations grow from start to start.
    worker.held = HeldModel(**{**vars(HELD), "worker_generation": int(time.time() * 1000)})
    server = await serve(worker, address)
    try:
        await asyncio.Event().wait()
    finally:
        await server.stop()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
