"""What requests came with (images to start from): once in the object store for all of a tenant's that share it."""

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from pentimento.domain.backoff import Backoff
from pentimento.domain.errors import Cancelled, Internal, Unavailable
from pentimento.domain.generation import GenerationSpec, ObjectReference, SpecInput
from pentimento.domain.image_request import ResolvedRequest
from pentimento.domain.reasons import Reason
from pentimento.domain.spec_inputs import put_inputs, take_inputs
from pentimento.pictures import check_whole
from pentimento.stores.errors import ObjectCorrupt, ObjectMissing
from pentimento.stores.objects.store import digest_of
from services.frontdoor.objects.object_keeper import ObjectKeeper
from services.frontdoor.requests.jobs import Job

PREFIX = "inputs"
# About three seconds; the attempt holds a place at its worker meanwhile, which others wait for.
_RETRY_COUNT = 6
_RETRIES = Backoff(first_s=0.05, max_s=1.6)
INPUT_RETRY_MS = 5000


@dataclass
class _Held:
    """An input of unfinished requests; its bytes are here until the store, or the journal, has them."""

    reference: ObjectReference
    users: set[str] = field(default_factory=set)
    data: bytes = field(default=b"", repr=False)
    storing: "asyncio.Task[ObjectReference] | None" = None


async def checked_digests(spec: GenerationSpec) -> dict[str, str]:
    """Return the digests of the images in a spec, by their place, once each was found to be whole. Both is done in a
    thread: the event loop, which serves all tenants, would do nothing else for milliseconds. Raises InvalidArgument
    that names the place."""
    images = take_inputs(spec)[1]
    return {place: await asyncio.to_thread(_checked_digest, place, data) for place, data in images.items()}


def _checked_digest(place: str, data: bytes) -> str:
    check_whole(data, place)
    return digest_of(data)


class Inputs:
    """Counts in memory which unfinished request uses what: the journal names them, and is read at the start."""

    def __init__(self, keeper: ObjectKeeper, spawn: Callable[[Coroutine[Any, Any, Any], str], object]) -> None:
        self._keeper = keeper
        self._spawn = spawn
        self._held: dict[tuple[str, str], _Held] = {}

    def claim(
        self, tenant: str, request_id: str, resolved: ResolvedRequest, digests: Mapping[str, str]
    ) -> ResolvedRequest:
        """Changes state: the request without the bytes it came with, which are held for it until `release`. `digests`
        are those of `checked_digests`."""
        spec, parts = take_inputs(resolved.spec)
        inputs = tuple(
            SpecInput(place, self._claim(tenant, request_id, data, digests[place])) for place, data in parts.items()
        )
        return replace(resolved, spec=spec, inputs=inputs)

    def adopt(self, tenant: str, request_id: str, resolved: ResolvedRequest) -> None:
        """Changes state: held for a request that an earlier frontdoor accepted."""
        for part in resolved.inputs:
            held = self._held.setdefault((tenant, part.object.digest), _Held(part.object))
            held.users.add(request_id)

    async def store(self, job: Job) -> None:
        """Changes state: what the job came with is durable, before it may be accepted. Raises as `ObjectKeeper.put`."""
        tenant = job.request.tenant
        for part in job.request.resolved.inputs:
            held = self._held[tenant, part.object.digest]
            if held.storing is None and held.data:
                work = self._keeper.put(tenant, held.reference.key, held.data)
                held.storing, held.data = asyncio.ensure_future(work), b""
            if held.storing is not None:
                # One of the requests that share it may go away meanwhile; the others still need it.
                await asyncio.shield(held.storing)

    async def load(self, job: Job, resolved: ResolvedRequest) -> GenerationSpec:
        """The spec with the bytes that it came with; those without a key are in it already. Raises Internal where they
        are gone, Unavailable where they cannot be read for a while, Cancelled where the request has ended meanwhile."""
        parts = {part.field: await self._read(job, part.object) for part in resolved.inputs if part.object.key}
        if job.ended.is_set():
            raise Cancelled("ENDED", "the request ended before it ran")
        return put_inputs(resolved.spec, parts)

    def release(self, job: Job) -> None:
        """Changes state: the job has ended; what nobody else uses goes."""
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
        """Of what the tenant's unfinished requests came with."""
        return sum(held.reference.size_bytes for (owner, _), held in self._held.items() if owner == tenant)

    def keys(self) -> set[str]:
        """Of everything that an unfinished request uses."""
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
                # A store may return wrong data for a while, as it may be away for a while.
                if delay_s is None and not isinstance(error, Unavailable):
                    message = "an input image of the request is no longer stored"
                    raise Internal("INPUT_GONE", message) from None
                if delay_s is None or job.ended.is_set():
                    break
            await asyncio.sleep(delay_s)
        message = "an image that the request came with cannot be read now"
        raise Unavailable(Reason.INPUT_UNAVAILABLE, message, retry_after_ms=INPUT_RETRY_MS)

    async def _delete(self, held: _Held) -> None:
        """What cannot be deleted now is swept up later; so is what is pinned, when the pin ends."""
        if held.storing is not None:
            await asyncio.wait([held.storing])
        elif held.data:
            return
        if not await self._keeper.is_named(held.reference.key):
            await self._keeper.delete(held.reference.key)


def _new_key(tenant: str) -> str:
    """Never one that was used before: what is being deleted must not be what somebody starts to use."""
    return f"{PREFIX}/{hashlib.sha256(tenant.encode()).hexdigest()[:32]}/{secrets.token_hex(16)}"
