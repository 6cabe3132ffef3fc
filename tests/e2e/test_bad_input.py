"""Whatever is wrong is refused by type and name before anything is allocated, and the processes go on serving."""

import math
from collections.abc import Mapping

import grpc
import pytest

from pentimento.api.image.v1 import image_service_pb2 as pb
from pentimento.api.image.v1.image_service_pb2_grpc import ImageServiceStub
from pentimento.domain.errors import InvalidArgument, NotFound, PentimentoError
from pentimento.domain.generation import InitImage
from pentimento.domain.image_request import AskedControlNet, AskedLora, CacheMode, ImageRequest
from pentimento.sdk import AsyncClient
from pentimento.supervisor.local import LocalSuite

GOOD = {"prompt": "a red circle", "num_inference_steps": 2, "cache": CacheMode.OFF}
PNG_1X1 = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108020000009077"
    "53de0000000c4944415408d763f8cfc0000003010100c9fe92ef0000000049454e44ae426082"
)
SIZES = (0, -1, 2**31, 2**62, 33)
Case = tuple[Mapping[str, object], type[PentimentoError], str]
CASES: list[Case] = [
    ({"prompt": ""}, InvalidArgument, "prompt"),
    ({"prompt": "x" * 10_000_000}, InvalidArgument, "prompt"),
    ({"prompt": "a red\0circle"}, InvalidArgument, "prompt"),
    ({"negative_prompt": "blue\0"}, InvalidArgument, "negative_prompt"),
    ({"negative_prompt": "x" * 10_000_000}, InvalidArgument, "negative_prompt"),
    *(({"width_px": size}, InvalidArgument, "width_px") for size in SIZES),
    *(({"height_px": size}, InvalidArgument, "height_px") for size in SIZES),
    *(({"num_inference_steps": steps}, InvalidArgument, "num_inference_steps") for steps in (0, -1, 10**9)),
    *(({"guidance_scale": scale}, InvalidArgument, "guidance_scale") for scale in (math.nan, math.inf, -math.inf)),
    *(({"eta": eta}, InvalidArgument, "eta") for eta in (math.nan, -0.5, 1.5)),
    *(({"quality": quality}, InvalidArgument, "quality") for quality in (math.nan, -0.1, 1.1)),
    *(({"deadline_ms": deadline}, InvalidArgument, "deadline_ms") for deadline in (0, -1)),
    ({"model": "no-such-model"}, NotFound, "model"),
    ({"model": "../../etc/passwd"}, NotFound, "model"),
    ({"scheduler": "no-such-scheduler"}, InvalidArgument, "scheduler"),
    ({"loras": (AskedLora("../no-such-lora"),)}, InvalidArgument, "loras[0].name"),
    ({"loras": (AskedLora("no-such-lora"),)}, NotFound, "loras[0].name"),
    ({"controlnets": (AskedControlNet("no-such-controlnet", PNG_1X1),)}, NotFound, "controlnets[0].name"),
    ({"init_image": InitImage(b"no image at all", 0.5)}, InvalidArgument, "init_image"),
    ({"init_image": InitImage(b"", 0.5)}, InvalidArgument, "init_image"),
    ({"init_image": InitImage(PNG_1X1, math.nan)}, InvalidArgument, "strength"),
    ({"init_image": InitImage(PNG_1X1, 1.5)}, InvalidArgument, "strength"),
]


def label(case: Case) -> str:
    ((field, value),) = case[0].items()
    return f"{field}={str(value)[:24]!r}"


@pytest.mark.parametrize(("fields", "expected", "field"), CASES, ids=[label(case) for case in CASES])
async def test_wrong_field_is_named_and_the_next_request_succeeds(
    client: AsyncClient, fields: Mapping[str, object], expected: type[PentimentoError], field: str
) -> None:
    with pytest.raises(expected) as refused:
        await client.generate(ImageRequest(**{**GOOD, **fields}))  # type: ignore[arg-type]

    assert named(refused.value, field)
    assert (await client.generate(ImageRequest(**GOOD))).data  # type: ignore[arg-type]


def named(error: PentimentoError, field: str) -> bool:
    return any(field in violation.field for violation in error.violations) or field in error.message.lower()


async def test_idempotency_key_that_is_too_long_is_named(client: AsyncClient) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await client.generate(ImageRequest(**GOOD), idempotency_key="k" * 129)  # type: ignore[arg-type]

    assert named(refused.value, "idempotency_key")


async def test_unknown_request_is_not_found(client: AsyncClient) -> None:
    with pytest.raises(NotFound):
        await client.get_request("no-such-request")


async def test_oversized_message_is_refused_by_the_server(suite: LocalSuite, client: AsyncClient) -> None:
    options = (("grpc.max_send_message_length", -1),)
    async with grpc.aio.insecure_channel(suite.endpoint.public, options=options) as channel:
        huge = pb.GenerateRequest(request=pb.ImageRequest(prompt="x" * (48 << 20)))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ImageServiceStub(channel).Generate(huge).read()

    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await client.generate(ImageRequest(**GOOD))).data  # type: ignore[arg-type]


async def test_bytes_that_are_no_message_are_refused(suite: LocalSuite, client: AsyncClient) -> None:
    async with grpc.aio.insecure_channel(suite.endpoint.public) as channel:
        generate = channel.unary_stream("/pentimento.api.image.v1.ImageService/Generate", bytes, bytes)
        call = generate(b"\x80\x04\x95not a message")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()

    assert refused.value.code() in {grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT}
    assert (await client.generate(ImageRequest(**GOOD))).data  # type: ignore[arg-type]
