"""Finished pictures: in the object store before the journal names them, and read back with their digest checked."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import TypeVar

from pentimento.clients.messages.generation import provenance_from_bytes, provenance_to_bytes
from pentimento.domain.clock import Clock
from pentimento.domain.execution import AttemptResult
from pentimento.domain.generation import ObjectReference, Provenance
from pentimento.domain.image_request import Completed, ImageFormat
from pentimento.stores.ledger.records import RequestRecord, ResultRecord
from pentimento.stores.objects import ObjectStore
from services.frontdoor.jobs import Execution, Job

T = TypeVar("T")

PREFIX = "results"


class Results:
    """Pictures by reference. The store blocks, so it works on threads."""

    def __init__(self, objects: ObjectStore, clock: Clock, build_version: str) -> None:
        self._objects = objects
        self._clock = clock
        self._build_version = build_version

    async def store(self, job: Job, execution: Execution) -> tuple[ResultRecord, Completed]:
        """Changes state: the picture lies in the store under an unguessable key. Raises StoreFull, StoreUnavailable."""
        result = execution.result
        assert result is not None
        key = f"{PREFIX}/{secrets.token_hex(16)}"
        image = await _on_thread(lambda: self._objects.put(key, result.image))
        provenance = self._provenance(job, execution, result)
        record = ResultRecord(
            image=image,
            image_format=job.resolved.format.value,
            width_px=result.width_px,
            height_px=result.height_px,
            provenance=provenance_to_bytes(provenance),
            completed_at=self._clock.wall(),
        )
        size = (result.width_px, result.height_px)
        return record, Completed(job.request_id, result.image, job.resolved.format, *size, provenance)

    async def load(self, record: RequestRecord, *, with_image: bool = True) -> Completed:
        """The picture of a completed request. Raises ObjectMissing, ObjectCorrupt: never wrong bytes."""
        result = record.result
        assert result is not None
        image = b""
        if with_image:
            reference = result.image
            image = await _on_thread(lambda: self._objects.get(reference))
        return Completed(
            record.request.request_id,
            image,
            ImageFormat(result.image_format),
            result.width_px,
            result.height_px,
            provenance_from_bytes(result.provenance),
        )

    async def discard(self, image: ObjectReference) -> None:
        """Changes state: no journal row names the picture."""
        await _on_thread(lambda: self._objects.delete(image.key))

    def _provenance(self, job: Job, execution: Execution, result: AttemptResult) -> Provenance:
        assert execution.route is not None
        paid = [other.result for other in job.executions.values() if other.result is not None]
        return Provenance(
            request_id=job.request_id,
            spec=execution.resolved.spec,
            route=execution.route,
            model_digest=result.model_digest,
            worker_id=execution.worker_id,
            worker_generation=result.worker_generation,
            attempt_number=result.attempt.attempt_number,
            steps_run=result.steps_run,
            steps_saved=result.steps_saved,
            build_version=self._build_version,
            timings=tuple(job.timings),
            discriminator_confidence=execution.confidence,
            device_seconds=sum(other.device_seconds for other in paid),
            energy_joules=energy_of(paid),
            notes=(*job.notes, *result.notes),
        )


def energy_of(results: Sequence[AttemptResult]) -> float | None:
    """None unless every device could tell."""
    known = [result.energy_joules for result in results if result.energy_joules is not None]
    return sum(known) if results and len(known) == len(results) else None


async def _on_thread(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, work)
