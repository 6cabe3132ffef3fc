"""Client of a discriminator."""

import math
from collections.abc import Sequence

import grpc.aio

from pentimento.api.discriminator.v1 import discriminator_service_pb2 as pb
from pentimento.api.discriminator.v1.discriminator_service_pb2_grpc import DiscriminatorServiceStub
from pentimento.clients.errors import domain_errors
from pentimento.domain.errors import Internal

AttemptKey = tuple[str, int]


class DiscriminatorClient:
    """Calls a discriminator, which says how likely light images are to pass for real ones (DiffServe, section 3.2)."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = DiscriminatorServiceStub(channel)

    async def score(
        self, cascade: str, images: Sequence[tuple[AttemptKey, bytes]], timeout_s: float | None = None
    ) -> dict[AttemptKey, float]:
        """Return the softmax of 'real', 0..1, for each image: (request id, fencing token) and PNG, JPEG or WebP bytes.

        Raises Internal when the answer leaves one out or holds something that is no share.
        """
        request = pb.ScoreRequest(
            cascade=cascade,
            images=[
                pb.ImageToScore(request_id=request_id, fencing_token=token, image=image)
                for (request_id, token), image in images
            ],
        )
        with domain_errors():
            answer = await self._stub.Score(request, timeout=timeout_s)
        scores = {(score.request_id, score.fencing_token): score.confidence for score in answer.scores}
        for key, _ in images:
            confidence = scores.get(key, math.nan)
            if not 0.0 <= confidence <= 1.0:
                raise Internal("BAD_SCORE", f"the discriminator answered {confidence:g} for an image")
        return scores

    async def status(self, timeout_s: float | None = None) -> pb.GetStatusResponse:
        """Return the discriminator's status message."""
        with domain_errors():
            return await self._stub.GetStatus(pb.GetStatusRequest(), timeout=timeout_s)
