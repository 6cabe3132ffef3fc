"""Store finished images before the journal names them, read them back with a check, and create their addresses."""

import logging
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pentimento.api.generation.v1 import generation_pb2
from pentimento.domain.clock import Clock
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from pentimento.domain.execution import AttemptResult
from pentimento.domain.generation import ObjectReference, Provenance, Route
from pentimento.domain.image_request import Completed, ImageFormat
from pentimento.domain.jobs import RequestState, ResultUrl, ResultUrlServer
from pentimento.domain.replay import full_steps_of, take_inputs, taken_of
from pentimento.stores.errors import ObjectCorrupt, ObjectMissing
from pentimento.stores.ledger.journal.records import JournalledRequest, ResultRecord
from pentimento.stores.objects.suspects import Suspects
from pentimento.wire.codec import from_bytes, to_bytes
from services.frontdoor.metrics import BAD_PICTURES
from services.frontdoor.objects.content_credentials import ContentCredentials
from services.frontdoor.objects.object_keeper import ObjectKeeper
from services.frontdoor.requests.jobs import Execution, Job

PREFIX = "results"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Results:
    """Store and load images by reference, signed with `credentials` if any. `uncommitted`: keys of images that no
    journal row names yet."""

    keeper: ObjectKeeper
    clock: Clock
    build_version: str
    suspects: Suspects
    credentials: ContentCredentials | None = None
    uncommitted: set[str] = field(default_factory=set, init=False)

    async def store(self, job: Job, execution: Execution) -> tuple[ResultRecord, Completed]:
        """Store the image under an unguessable key. Raises as `ObjectKeeper.put`."""
        result = execution.result
        assert result is not None
        data, image_format = result.image, job.request.resolved.format
        provenance = self._provenance(job, execution, result)
        if self.credentials is not None:
            data, provenance = await self.credentials.signed(data, image_format, provenance)
        key = f"{PREFIX}/{secrets.token_hex(16)}"
        self.uncommitted.add(key)
        try:
            image = await self.keeper.put(job.request.tenant, key, data)
        except BaseException:
            self.uncommitted.discard(key)
            raise
        record = ResultRecord(
            image=image,
            image_format=image_format.value,
            width_px=result.width_px,
            height_px=result.height_px,
            provenance=to_bytes(provenance, generation_pb2.Provenance),
            completed_at=self.clock.wall(),
        )
        size = (result.width_px, result.height_px)
        return record, Completed(job.request.request_id, data, image_format, *size, provenance)

    async def load(self, record: JournalledRequest, *, with_image: bool = True) -> Completed:
        """Return the image of a completed request, never wrong bytes. Raises NotFound RESULT_GONE, Unavailable
        OBJECT_CORRUPT for bytes that may be right at a later reading, ObjectCorrupt for bytes that stay wrong."""
        result = record.result
        assert result is not None
        image = await self._read(result.image) if with_image else b""
        return Completed(
            record.request.request_id,
            image,
            ImageFormat(result.image_format),
            result.width_px,
            result.height_px,
            from_bytes(result.provenance, Provenance, generation_pb2.Provenance),
        )

    def close(self) -> None:
        if self.credentials is not None:
            self.credentials.close()

    async def _read(self, image: ObjectReference) -> bytes:
        gone = NotFound("RESULT_GONE", "the image of this request is no longer stored")
        if not image.key:
            raise gone
        try:
            data = await self.keeper.get(image)
        except ObjectMissing:
            # Row and object may have been deleted since the row was read.
            if await self.keeper.is_named(image.key):
                BAD_PICTURES.labels("missing").inc()
                logger.warning("an image is missing in the object store")
            raise gone from None
        except ObjectCorrupt as error:
            BAD_PICTURES.labels("corrupt").inc()
            if self.suspects.note_bad(image) and await self.keeper.set_aside(image):
                self.suspects.note_good(image.key)
                logger.error("an image stays corrupt in the object store and was moved to its quarantine")
                raise
            logger.error("the object store returned wrong data for an image; nothing is deleted")
            # A store may return wrong data for a while: clients that try again receive the image.
            raise Unavailable(error.reason, error.message) from error
        self.suspects.note_good(image.key)
        return data

    def _provenance(self, job: Job, execution: Execution, result: AttemptResult) -> Provenance:
        replay = job.request.resolved.replay
        paid = [other.result for other in job.executions.values() if other.result is not None]
        return Provenance(
            request_id=job.request.request_id,
            # Input bytes are named by their digests: the client that sent them has them.
            spec=take_inputs(execution.resolved.spec)[0],
            route=_route_taken(execution.route, result),
            model_digest=result.model_digest,
            worker_id=execution.worker_id,
            worker_generation=result.worker_generation,
            attempt_number=result.attempt.attempt_number,
            steps_run=result.steps_run,
            steps_saved=result.steps_saved,
            build_version=self.build_version,
            timings=tuple(job.timings),
            discriminator_confidence=execution.confidence,
            device_seconds=sum(other.device_seconds for other in paid),
            energy_joules=energy_of(paid),
            notes=(*job.notes, *result.notes),
            inputs=tuple(replace(part, object=replace(part.object, key="")) for part in execution.resolved.inputs),
            replay_equal=result.image_digest == replay.image_digest if replay and replay.image_digest else None,
            encoding_quality=job.request.resolved.encoding_quality,
            prompt_verdict=job.request.resolved.prompt_verdict,
            image_verdict=execution.image_verdict,
        )


def _route_taken(route: Route, result: AttemptResult) -> Route:
    """Return the route as executed: an earlier patch step of LoRAs that arrived sooner, and noise for a start that the
    worker could not use."""
    if result.lora_patch_step is not None:
        route = replace(route, lora_patch_step=result.lora_patch_step)
    full_steps = full_steps_of(route, result.steps_saved)
    route = replace(route, thinned_steps=result.thinned_steps, full_steps=full_steps)
    taken = taken_of(route.start, result.steps_saved)
    if taken == route.start:
        return route
    why = result.bad_donor_reason or "the worker could not use it"
    return replace(route, start=taken, reason=f"from noise: {why}; planned: {route.reason}")


def energy_of(results: Sequence[AttemptResult]) -> float | None:
    """Return the energy of all results; None unless every device reported it."""
    known = [result.energy_joules for result in results if result.energy_joules is not None]
    return sum(known) if results and len(known) == len(results) else None


# Lifetime of an address if the request names none.
USUAL_MS = 3_600_000
# The longest lifetime of an address: a day.
LONGEST_MS = 86_400_000


@dataclass(frozen=True)
class ResultUrls:
    """Create addresses of images."""

    keeper: ObjectKeeper
    clock: Clock

    @property
    def server(self) -> ResultUrlServer | None:
        """Return the server of this deployment's addresses; None if unknown because the store is away."""
        return self.keeper.address_server

    async def url_of(self, record: JournalledRequest, expires_in_ms: int | None) -> ResultUrl:
        """Return an address of a completed request's image. Raises FailedPrecondition URLS_OFF, NOT_COMPLETED, NotFound
        RESULT_GONE, Unavailable while the image waits for its store, InvalidArgument for a wrong time."""
        asked_ms = USUAL_MS if expires_in_ms is None else expires_in_ms
        if not 1 <= asked_ms <= LONGEST_MS:
            raise InvalidArgument.of("expires_in_ms", f"must be 1 to {LONGEST_MS}, got {asked_ms}")
        if record.state is not RequestState.COMPLETED or record.result is None:
            raise FailedPrecondition("NOT_COMPLETED", "the request has no image")
        if not record.result.image.key:
            raise NotFound("RESULT_GONE", "the image of this request is no longer stored")
        # Stores count in seconds.
        expires_at = math.ceil(self.clock.wall() + asked_ms / 1000)
        media_type = f"image/{record.result.image_format}"
        url = await self.keeper.presign(record.result.image, media_type, expires_at)
        return ResultUrl(url, expires_at * 1000)
