"""Store the inputs of requests (images to start from), once for all requests of a tenant that share them."""

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from pentimento.domain.clock import Backoff
from pentimento.domain.errors import Cancelled, Internal, Unavailable
from pentimento.domain.generation import GenerationSpec, ObjectReference, SpecInput
from pentimento.domain.image_request import ResolvedRequest
from pentimento.domain.reasons import Reason
from pentimento.domain.replay import put_inputs, take_inputs
from pentimento.images import check_whole
from pentimento.stores.errors import ObjectCorrupt, ObjectMissing
from pentimento.stores.objects.store import digest_of
from services.frontdoor.objects.object_keeper import ObjectKeeper
from services.frontdoor.requests.jobs import Job

PREFIX = "inputs"
# About thirty seconds, longer than a restart of the store; the attempt occupies a batch slot of its worker meanwhile.
_RETRY_COUNT = 23
_RETRIES = Backoff(first_s=0.05, max_s=1.6)
INPUT_RETRY_MS = 5000


@dataclass
class _Held:
    """Hold an input of unfinished requests, with its bytes until the store or the journal has them."""

    reference: ObjectReference
    users: set[str] = field(default_factory=set)
    data: bytes = field(default=b"", repr=False)
    storing: "asyncio.Task[ObjectReference] | None" = None


async def checked_digests(spec: GenerationSpec) -> dict[str, str]:
    """Return the digests of a spec's images by their field, after a check of each image. Both run in a thread: they
    would block the event loop, which serves all tenants, for milliseconds. Raises InvalidArgument with the field."""
    images = take_inputs(spec)[1]
    return {place: await asyncio.to_thread(_checked_digest, place, data) for place, data in images.items()}


def _checked_digest(place: str, data: bytes) -> str:
    check_whole(data, place)
    return digest_of(data)


class Inputs:
    """Track in memory which unfinished requests use which input: the journal names them, and is read at the start."""

    def __init__(self, keeper: ObjectKeeper, spawn: Callable[[Coroutine[Any, Any, Any], str], object]) -> None:
        self._keeper = keeper
        self._spawn = spawn
        self._held: dict[tuple[str, str], _Held] = {}

    def claim(
        self, tenant: str, request_id: str, resolved: ResolvedRequest, digests: Mapping[str, str]
    ) -> ResolvedRequest:
        """Return the request without its input bytes, which are held until `release`. `digests` come from
        `checked_digests`."""
        spec, parts = take_inputs(resolved.spec)
        inputs = tuple(
            SpecInput(place, self._claim(tenant, request_id, data, digests[place])) for place, data in parts.items()
        )
        return replace(resolved, spec=spec, inputs=inputs)

    def adopt(self, tenant: str, request_id: str, resolved: ResolvedRequest) -> None:
        """Hold the inputs of a request that an earlier frontdoor accepted."""
        for part in resolved.inputs:
            held = self._held.setdefault((tenant, part.object.digest), _Held(part.object))
            held.users.add(request_id)

    async def store(self, job: Job) -> None:
        """Make the job's inputs durable, before it may be accepted. Raises as `ObjectKeeper.put`."""
        tenant = job.request.tenant
        for part in job.request.resolved.inputs:
            held = self._held[tenant, part.object.digest]
            if held.storing is None and held.data:
                work = self._keeper.put(tenant, held.reference.key, held.data)
                held.storing, held.data = asyncio.ensure_future(work), b""
            if held.storing is not None:
                # A request that shares the input may end during the write; the others still need it.
                await asyncio.shield(held.storing)

    async def load(self, job: Job, resolved: ResolvedRequest) -> GenerationSpec:
        """Return the spec with its input bytes; inputs without a key are already in it. Raises Internal if they are
        lost, Unavailable if they cannot be read for a while, Cancelled if the request ended during the read."""
        parts = {part.field: await self._read(job, part.object) for part in resolved.inputs if part.object.key}
        if job.ended.is_set():
            raise Cancelled("ENDED", "the request ended before it ran")
        return put_inputs(resolved.spec, parts)

    def release(self, job: Job) -> None:
        """Delete the inputs of an ended job that no other job uses."""
        request = job.request
        for part in () if job.elsewhere else request.resolved.inputs:
            held = self._held.get((request.tenant, part.object.digest))
            if held is None or request.request_id not in held.users:
                continue
            held.users.discard(request.request_id)
            if not held.users:
                del self._held[request.tenant, part.object.digest]
                self._spawn(self._delete(held), "delete an input")

    def size_bytes(self, tenant: str) -> int:
        return sum(held.reference.size_bytes for (owner, _), held in self._held.items() if owner == tenant)

    def keys(self) -> set[str]:
        return {held.reference.key for held in self._held.values()}

    def _claim(self, tenant: str, request_id: str, data: bytes, digest: str) -> ObjectReference:
        found = ObjectReference(_new_key(tenant), digest, len(data))
        held = self._held.setdefault((tenant, found.digest), _Held(found, data=data))
        held.users.add(request_id)
        return held.reference

    async def _read(self, job: Job, reference: ObjectReference) -> bytes:
        for delay_s in (*islice(_RETRIES.delays_s(), _RETRY_COUNT), None):
            try:
                return await self._keeper.get(reference)
            except (ObjectMissing, ObjectCorrupt, Unavailable) as error:
                # A store may return wrong data for a while, just as it may be away for a while.
                if delay_s is None and not isinstance(error, Unavailable):
                    message = "an input image of the request is no longer stored"
                    raise Internal("INPUT_GONE", message) from None
                if delay_s is None or job.ended.is_set():
                    break
            await asyncio.sleep(delay_s)
        message = "an image that the request came with cannot be read now"
        raise Unavailable(Reason.INPUT_UNAVAILABLE, message, retry_after_ms=INPUT_RETRY_MS)

    async def _delete(self, held: _Held) -> None:
        """Delete an input. The sweep deletes later what fails now, and pinned inputs once their pin ends."""
        if held.storing is not None:
            await asyncio.wait([held.storing])
        elif held.data:
            return
        if not await self._keeper.is_named(held.reference.key):
            await self._keeper.delete(held.reference.key)


def prefix_of(tenant: str) -> str:
    return f"{PREFIX}/{hashlib.sha256(tenant.encode()).hexdigest()[:32]}/"


def _new_key(tenant: str) -> str:
    """Return a new key: a request must not start to use an object that is being deleted."""
    return prefix_of(tenant) + secrets.token_hex(16)
