"""pentimento.api.discriminator.v1 over the discriminator."""

from typing import Any

import grpc.aio

from pentimento.api.discriminator.v1 import discriminator_service_pb2 as pb
from pentimento.api.discriminator.v1.discriminator_service_pb2_grpc import DiscriminatorServiceServicer
from services.discriminator.scoring import Discriminator

FULL_NAME = pb.DESCRIPTOR.services_by_name["DiscriminatorService"].full_name
Context = grpc.aio.ServicerContext[Any, Any]


class DiscriminatorServicer(DiscriminatorServiceServicer):
    def __init__(self, discriminator: Discriminator, instance_id: str) -> None:
        self._discriminator = discriminator
        self._instance_id = instance_id

    async def Score(self, request: pb.ScoreRequest, context: Context) -> pb.ScoreResponse:
        scores = await self._discriminator.score(request.cascade, [entry.image for entry in request.images])
        return pb.ScoreResponse(
            scores=[
                pb.ImageScore(request_id=entry.request_id, fencing_token=entry.fencing_token, confidence=confidence)
                for entry, confidence in zip(request.images, scores.confidences, strict=True)
            ],
            discriminator_digest=scores.digest,
        )

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        return pb.GetStatusResponse(
            instance_id=self._instance_id,
            cascades=self._discriminator.scorer.cascades,
            scored_count=self._discriminator.scored_count,
            draining=self._discriminator.draining,
        )
