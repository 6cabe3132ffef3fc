"""Test that wrong input gives a typed error that names the field, before any allocation; processes keep serving."""

import grpc
import pytest

from pentimento.api.image.v1 import image_service_pb2 as pb
from pentimento.api.image.v1.image_service_pb2_grpc import ImageServiceStub
from pentimento.domain.errors import InvalidArgument, NotFound, PentimentoError
from pentimento.domain.generation import InitImage
from pentimento.domain.image_request import CacheMode, ImageRequest
from pentimento.sdk import AsyncClient
from pentimento.supervisor.local import LocalSuite

GOOD = {"prompt": "a red circle", "num_inference_steps": 2, "cache": CacheMode.OFF}
CASES: tuple[tuple[dict[str, object], type[PentimentoError], str], ...] = (
    ({"prompt": ""}, InvalidArgument, "prompt"),
    ({"model": "../../etc/passwd"}, NotFound, "model"),
    ({"init_image": InitImage(b"no image at all", 0.5)}, InvalidArgument, "init_image"),
)


async def test_wrong_field_is_named_and_next_request_succeeds(client: AsyncClient) -> None:
    for fields, expected, field in CASES:
        with pytest.raises(expected) as refused:
            await client.generate(ImageRequest(**{**GOOD, **fields}))  # type: ignore[arg-type]

        error = refused.value
        assert any(field in one.field for one in error.violations) or field in error.message.lower()
    assert (await client.generate(ImageRequest(**GOOD))).data  # type: ignore[arg-type]


async def test_oversized_message_is_refused_by_the_server(suite: LocalSuite, client: AsyncClient) -> None:
    options = (("grpc.max_send_message_length", -1),)
    async with grpc.aio.insecure_channel(suite.endpoint.public, options=options) as channel:
        huge = pb.GenerateRequest(request=pb.ImageRequest(prompt="x" * (48 << 20)))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ImageServiceStub(channel).Generate(huge).read()

    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await client.generate(ImageRequest(**GOOD))).data  # type: ignore[arg-type]
