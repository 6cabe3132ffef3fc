"""Check prompts and images by the operator's classifiers; checks of several calls share a pass."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import grpc.aio

from pentimento.api.safety.v1 import safety_service_pb2 as pb
from pentimento.api.safety.v1.safety_service_pb2_grpc import SafetyServiceServicer
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, Unavailable
from pentimento.domain.safety import IMAGE, PROMPT, SafetyVerdict
from pentimento.images.decoding import decode
from pentimento.service.batching import BatchingLimits, ModelThread
from services.discriminator.metrics import CHECKED, PASS_SECONDS
from services.discriminator.scoring import MAX_IMAGE_BYTES

FULL_NAME = pb.DESCRIPTOR.services_by_name["SafetyService"].full_name
MAX_PROMPT_CHARACTERS = 20_000
QUEUE_LIMIT = 256


class Classifier(Protocol):
    """A loaded classifier of prompts or images, which torch runs."""

    @property
    def prepare(self) -> Callable[[Any], Any]: ...

    def verdicts(self, prepared: Sequence[Any]) -> Sequence[SafetyVerdict]: ...


# Loads the classifiers by what they classify.
Opener = Callable[[], Mapping[str, Classifier]]


class SafetyChecks:
    """Run classifiers on a thread of their own, from `open` to `close`."""

    def __init__(
        self, kinds: frozenset[str], opener: Opener, batch_size: int, inside: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        self._kinds = kinds
        self._opener = opener
        self._limits = BatchingLimits(batch_size, 0.0, QUEUE_LIMIT)
        self._inside = inside
        self._classifiers: Mapping[str, Classifier] = {}
        self._thread: ModelThread | None = None

    async def open(self) -> None:
        """Load the classifiers. Raises the fault of a bad directory."""
        if not self._kinds:
            return
        self._classifiers = await asyncio.to_thread(self._opener)
        lanes = {kind: one.verdicts for kind, one in self._classifiers.items()}
        self._thread = ModelThread(lanes, self._limits, self._inside, lambda _, waited_s, s: PASS_SECONDS.observe(s))

    async def close(self) -> None:
        """Finish the accepted checks."""
        if self._thread is not None:
            await asyncio.to_thread(self._thread.close)

    async def prompt(self, text: str) -> SafetyVerdict:
        """Return the verdict on a prompt. Raises as `_loaded`, and InvalidArgument for one that is too long."""
        if len(text) > MAX_PROMPT_CHARACTERS:
            raise InvalidArgument.of("prompt", f"must have at most {MAX_PROMPT_CHARACTERS} characters, got {len(text)}")
        classifier, thread = self._loaded(PROMPT)
        return await self._checked(PROMPT, classifier.prepare(text), thread)

    async def image(self, data: bytes) -> SafetyVerdict:
        """Return the verdict on an encoded image. Raises as `_loaded`, and InvalidArgument for one that cannot be
        read."""
        if not 1 <= len(data) <= MAX_IMAGE_BYTES:
            raise InvalidArgument.of("image", f"must be 1 to {MAX_IMAGE_BYTES} bytes, got {len(data)}")
        classifier, thread = self._loaded(IMAGE)
        return await self._checked(IMAGE, await asyncio.to_thread(decode, data, "image", classifier.prepare), thread)

    async def _checked(self, kind: str, prepared: Any, thread: ModelThread) -> SafetyVerdict:
        (verdict,) = await thread.run(kind, [prepared])
        CHECKED.labels(kind, str(verdict.unsafe).lower()).inc()
        found: SafetyVerdict = verdict
        return found

    def _loaded(self, kind: str) -> tuple[Classifier, ModelThread]:
        """Raises FailedPrecondition NO_CLASSIFIER if this process has none of that kind, Unavailable LOADING."""
        if kind not in self._kinds:
            raise FailedPrecondition("NO_CLASSIFIER", f"this process has no classifier of {kind}s")
        if self._thread is None:
            raise Unavailable("LOADING", "the classifiers are being loaded", retry_after_ms=500)
        return self._classifiers[kind], self._thread


class SafetyServicer(SafetyServiceServicer):
    """Serve pentimento.api.safety.v1."""

    def __init__(self, checks: SafetyChecks) -> None:
        self._checks = checks

    async def Check(self, request: pb.CheckRequest, context: "grpc.aio.ServicerContext[Any, Any]") -> pb.CheckResponse:
        match request.WhichOneof("subject"):
            case "prompt":
                verdict = await self._checks.prompt(request.prompt)
            case "image":
                verdict = await self._checks.image(request.image)
            case _:
                raise InvalidArgument.of("subject", "must be a prompt or an image")
        return pb.CheckResponse(
            probability=verdict.probability,
            limit=verdict.limit,
            label=verdict.label,
            classifier_digest=verdict.classifier_digest,
        )
