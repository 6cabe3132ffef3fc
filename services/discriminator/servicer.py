"""Serve pentimento.api.discriminator.v1."""

from typing import Any

import grpc.aio

from pentimento.api.discriminator.v1 import discriminator_service_pb2 as pb
from pentimento.api.discriminator.v1.discriminator_service_pb2_grpc import DiscriminatorServiceServicer
from pentimento.domain.embedding import Embedding
from pentimento.wire.codec import decode, nested
from services.discriminator.scoring import Discriminator, ImageToScore

FULL_NAME = pb.DESCRIPTOR.services_by_name["DiscriminatorService"].full_name
Context = grpc.aio.ServicerContext[Any, Any]


class DiscriminatorServicer(DiscriminatorServiceServicer):
    def __init__(self, discriminator: Discriminator, instance_id: str) -> None:
        self._discriminator = discriminator
        self._instance_id = instance_id

    async def Score(self, request: pb.ScoreRequest, context: Context) -> pb.ScoreResponse:
        images = [_image(entry) for entry in request.images]
        scores = await self._discriminator.score(request.cascade, images)
        return pb.ScoreResponse(
            scores=[
                pb.ImageScore(request_id=entry.request_id, fencing_token=entry.fencing_token, confidence=confidence)
                for entry, confidence in zip(request.images, scores.confidences, strict=True)
            ],
            discriminator_digest=scores.digest,
        )

    async def Foresee(self, request: pb.ForeseeRequest, context: Context) -> pb.ForeseeResponse:
        prompts = [decode(entry.prompt, Embedding, "prompt") for entry in request.prompts]
        threshold = request.threshold if request.HasField("threshold") else None
        foresights = await self._discriminator.foresee(request.cascade, prompts, threshold)
        return pb.ForeseeResponse(
            foresights=[
                pb.PromptForesight(request_id=entry.request_id, **nested(foresight, pb.PromptForesight))
                for entry, foresight in zip(request.prompts, foresights.prompts, strict=True)
            ],
            discriminator_digest=foresights.digest,
        )

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        return pb.GetStatusResponse(
            instance_id=self._instance_id,
            cascades=self._discriminator.scorer.cascades,
            scored_count=self._discriminator.scored_count,
            draining=self._discriminator.draining,
            prompt_cascades=self._discriminator.scorer.prompt_cascades,
            classifiers=self._discriminator.classifiers,
        )


def _image(entry: pb.ImageToScore) -> ImageToScore:
    prompt = decode(entry.prompt, Embedding, "prompt") if entry.HasField("prompt") else None
    return ImageToScore(entry.image, prompt)
