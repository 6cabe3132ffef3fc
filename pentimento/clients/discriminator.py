"""Call a discriminator, and the classifiers of prompts and images that its process may have."""

import math
from collections.abc import Mapping, Sequence

import grpc.aio

from pentimento.api.discriminator.v1 import discriminator_service_pb2 as pb
from pentimento.api.discriminator.v1.discriminator_service_pb2_grpc import DiscriminatorServiceStub
from pentimento.api.embedder.v1 import embedder_service_pb2 as embedder_pb
from pentimento.api.safety.v1 import safety_service_pb2 as safety_pb
from pentimento.api.safety.v1.safety_service_pb2_grpc import SafetyServiceStub
from pentimento.clients.calls import answer_of
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import FailedPrecondition, Internal, InvalidArgument
from pentimento.domain.foresight import PromptForesight
from pentimento.domain.safety import SafetyVerdict
from pentimento.wire.codec import decode, encode, nested

AttemptKey = tuple[str, int]
# The reason if another discriminator answers than the expected one.
OTHER_DISCRIMINATOR = "OTHER_DISCRIMINATOR"


class DiscriminatorClient:
    """Call a discriminator, which scores how likely light images pass for real ones (DiffServe, section 3.2)."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = DiscriminatorServiceStub(channel)

    async def score(
        self,
        cascade: str,
        images: Sequence[tuple[AttemptKey, bytes]],
        timeout_s: float | None = None,
        prompts: Mapping[AttemptKey, Embedding] | None = None,
        digest: str = "",
    ) -> dict[AttemptKey, float]:
        """Return the confidence, 0..1, of each image: (request id, fencing token) and PNG, JPEG or WebP bytes, with the
        prompt's embedding for discriminators that read prompts, all of one encoder. `digest`: the expected
        discriminator, empty for any.

        Raises Internal for a missing or invalid confidence, FailedPrecondition OTHER_DISCRIMINATOR if another
        discriminator answers.
        """
        request = pb.ScoreRequest(cascade=cascade)
        for (request_id, token), image in images:
            entry = request.images.add(request_id=request_id, fencing_token=token, image=image)
            if (prompt := (prompts or {}).get((request_id, token))) is not None:
                entry.prompt.CopyFrom(encode(prompt, embedder_pb.Embedding))
        answer = await answer_of(self._stub.Score, request, timeout_s)
        _check_digest(digest, answer.discriminator_digest)
        scores = {(score.request_id, score.fencing_token): score.confidence for score in answer.scores}
        for key, _ in images:
            confidence = scores.get(key, math.nan)
            if not 0.0 <= confidence <= 1.0:
                raise Internal("BAD_SCORE", f"the discriminator answered {confidence:g} for an image")
        return scores

    async def foresee(
        self,
        cascade: str,
        prompt: Embedding,
        timeout_s: float | None = None,
        digest: str = "",
        threshold: float | None = None,
    ) -> PromptForesight:
        """Return the prediction from the prompt alone, with its verdict at that confidence threshold or else the
        discriminator's own; `digest` as for `score`. Raises FailedPrecondition
        NO_PROMPT_HEAD for a discriminator without a prompt head, OTHER_DISCRIMINATOR like `score`, Internal for an
        invalid answer."""
        entry = pb.PromptToForesee(prompt=nested(prompt, embedder_pb.Embedding))
        request = pb.ForeseeRequest(cascade=cascade, prompts=[entry], threshold=threshold)
        answer = await answer_of(self._stub.Foresee, request, timeout_s)
        _check_digest(digest, answer.discriminator_digest)
        try:
            (foresight,) = (decode(one, PromptForesight) for one in answer.foresights)
        except (InvalidArgument, ValueError):
            foresight = None
        if foresight is None or not 0.0 <= foresight.probability <= 1.0:
            raise Internal("BAD_FORESIGHT", "the discriminator answered no foresight of the prompt")
        return foresight

    async def status(self, timeout_s: float | None = None) -> pb.GetStatusResponse:
        """Return the discriminator's status message."""
        return await answer_of(self._stub.GetStatus, pb.GetStatusRequest(), timeout_s)


def _check_digest(meant: str, answered: str) -> None:
    """Raise FailedPrecondition for another digest: thresholds hold only for the scores that they were planned with."""
    if meant and answered != meant:
        message = f"the discriminator that answers is {answered[:80]}, the plan's is {meant}"
        raise FailedPrecondition(OTHER_DISCRIMINATOR, message)


class SafetyClient:
    """Call a process that has the operator's classifiers."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = SafetyServiceStub(channel)

    async def check_prompt(self, prompt: str, timeout_s: float) -> SafetyVerdict:
        """Return the verdict on a prompt. Raises FailedPrecondition NO_CLASSIFIER if the process has none."""
        return await self._check(safety_pb.CheckRequest(prompt=prompt), timeout_s)

    async def check_image(self, image: bytes, timeout_s: float) -> SafetyVerdict:
        """Return the verdict on a PNG, JPEG or WebP. Raises as `check_prompt`."""
        return await self._check(safety_pb.CheckRequest(image=image), timeout_s)

    async def _check(self, request: safety_pb.CheckRequest, timeout_s: float) -> SafetyVerdict:
        return decode(await answer_of(self._stub.Check, request, timeout_s), SafetyVerdict)
