"""Call the classifiers of prompts and images."""

import grpc.aio

from pentimento.api.safety.v1 import safety_service_pb2 as pb
from pentimento.api.safety.v1.safety_service_pb2_grpc import SafetyServiceStub
from pentimento.clients.calls import answer_of
from pentimento.domain.safety import SafetyVerdict
from pentimento.wire.codec import decode


class SafetyClient:
    """Call a process that has the operator's classifiers."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = SafetyServiceStub(channel)

    async def check_prompt(self, prompt: str, timeout_s: float) -> SafetyVerdict:
        """Return the verdict on a prompt. Raises FailedPrecondition NO_CLASSIFIER if the process has none."""
        return await self._check(pb.CheckRequest(prompt=prompt), timeout_s)

    async def check_image(self, image: bytes, timeout_s: float) -> SafetyVerdict:
        """Return the verdict on a PNG, JPEG or WebP. Raises as `check_prompt`."""
        return await self._check(pb.CheckRequest(image=image), timeout_s)

    async def _check(self, request: pb.CheckRequest, timeout_s: float) -> SafetyVerdict:
        return decode(await answer_of(self._stub.Check, request, timeout_s), SafetyVerdict)
