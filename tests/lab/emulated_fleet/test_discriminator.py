"""Test the emulated discriminator over its real RPC: it reads the labels of emulated images."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from lab.emulation.emulated_discriminator.settings import EmulatedDiscriminatorSettings
from lab.emulation.emulated_discriminator.wiring import wire
from lab.emulation.fleet_file import ImageLabel, labelled
from lab.emulation.png_text import flat_png
from pentimento.api.discriminator.v1 import discriminator_service_pb2 as pb
from pentimento.api.discriminator.v1.discriminator_service_pb2_grpc import DiscriminatorServiceStub
from pentimento.domain.errors import InvalidArgument
from pentimento.rpc import RpcChannelSettings, RpcServerSettings, open_channel

PLAIN = flat_png(8, 8, (1, 2, 3))


@pytest.fixture
async def stub(fleet_file: Path) -> AsyncIterator[DiscriminatorServiceStub]:
    address = f"unix:{fleet_file.parent / 'd'}"
    rpc, channels = RpcServerSettings(listen=(address,)), RpcChannelSettings()
    process = wire(EmulatedDiscriminatorSettings(rpc, channels, fleet_file))
    await process.server.start()
    try:
        await process.warm()
        async with open_channel(address, channels) as channel:
            yield DiscriminatorServiceStub(channel)
    finally:
        await process.server.stop()


def image(confidence: float, request_id: str = "r") -> pb.ImageToScore:
    png = labelled(PLAIN, ImageLabel("light", confidence))
    return pb.ImageToScore(request_id=request_id, fencing_token=7, image=png)


async def test_emulated_score_is_the_images_confidence(stub: DiscriminatorServiceStub) -> None:
    answer = await stub.Score(pb.ScoreRequest(cascade="c", images=[image(0.25, "a"), image(0.75, "b")]))

    found = [(score.request_id, score.fencing_token, score.confidence) for score in answer.scores]
    assert found == [("a", 7, 0.25), ("b", 7, 0.75)]
    assert (await stub.GetStatus(pb.GetStatusRequest())).scored_count == 2


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([], "images: must be 1 to 64, got 0"),
        ([image(0.5)] * 65, "images: must be 1 to 64, got 65"),
        ([image(0.5), pb.ImageToScore(image=PLAIN)], r"images\[1\]\.image: must be an image of an emulated device"),
        ([pb.ImageToScore(image=b"")], r"images\[0\]\.image: must be 1 to"),
    ],
)
async def test_unscorable_image_is_named(
    images: list[pb.ImageToScore], message: str, stub: DiscriminatorServiceStub
) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=message) as refused:
        await stub.Score(pb.ScoreRequest(images=images))

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_fleet_without_a_discriminator_starts_none(fleet_file: Path) -> None:
    text = fleet_file.read_text()
    fleet_file.write_text(text[: text.index("[discriminator]")])

    with pytest.raises(InvalidArgument, match=r"must have a table \[discriminator\]"):
        wire(
            EmulatedDiscriminatorSettings(RpcServerSettings(listen=("unix:/tmp/x",)), RpcChannelSettings(), fleet_file)
        )
