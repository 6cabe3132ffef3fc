"""Attack by start images: small files that inflate, and large files that do not."""

import asyncio
import os
import struct
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.attacks.calls import SMALL, generated
from benchmarks.attacks.target import EMBEDDER, Answers, AttackTarget, call_with_bytes
from pentimento.api.embedder.v1 import embedder_service_pb2
from pentimento.clients.image import ImageClient
from pentimento.domain.generation import InitImage
from pentimento.images.png import SIGNATURE, png_chunk, png_file

LIMIT_S = 20.0
GREY, RGB = 0, 2
MIB = 1 << 20


def header(width: int, height: int, colour: int = GREY) -> bytes:
    return png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0))


def blank(width: int, height: int) -> bytes:
    """Return the encoded bytes of a black grey-scale image."""
    return png_chunk(b"IDAT", zlib.compress(bytes((1 + width) * height), 9))


def weapons() -> dict[str, bytes]:
    """Return the hostile images by name."""
    bomb = zlib.compress(bytes(100 * MIB), 9)
    small = (header(64, 64), blank(64, 64))
    return {
        "wide": png_file(header(16_777_216, 1), blank(16_777_216, 1)),
        "tall": png_file(header(1, 16_777_216), blank(1, 16_777_216)),
        "square": png_file(header(4096, 4096), blank(4096, 4096)),
        "two headers": png_file(header(64, 64), header(16_777_216, 1), blank(16_777_216, 1)),
        "huge": png_file(header(2**31 - 1, 2**31 - 1), blank(64, 64)),
        "pixel flood": png_file(header(64_250, 64_250), blank(64, 64)),
        "text bomb": png_file(small[0], *[png_chunk(b"zTXt", b"a\0\0" + bomb)] * 8, small[1]),
        "profile bomb": png_file(small[0], png_chunk(b"iCCP", b"a\0\0" + bomb), small[1]),
        "truncated": png_file(header(4096, 4096), png_chunk(b"IDAT", zlib.compress(bytes(100)))),
        "no chunks": SIGNATURE,
    }


async def image_bombs(target: AttackTarget) -> Answers:
    """Send each hostile image eight times concurrently as a start image."""
    return await sent(target, [data for data in weapons().values() for _ in range(8)])


async def image_bombs_to_the_embedder(target: AttackTarget) -> Answers:
    """Send each hostile image twice to the embedder, as a service."""
    embed = next(method for method in target.methods(EMBEDDER) if method.name == "EmbedImage")
    async with target.channel(target.addresses[EMBEDDER], "service") as channel:
        messages = [
            embedder_service_pb2.EmbedImageRequest(images=[data]).SerializeToString() for data in weapons().values()
        ]
        calls = [call_with_bytes(channel, embed, message, LIMIT_S / 2) for message in messages * 2]
        return Counter(await asyncio.gather(*calls))


async def large_images(target: AttackTarget) -> Answers:
    """Send 30 concurrent requests, each with a different start image of 8 MiB of noise."""
    return await sent(target, [noise(1670, 1670) for _ in range(30)])


def noise(width: int, height: int) -> bytes:
    """Return an image that does not compress."""
    row = 3 * width
    data = b"".join(b"\0" + os.urandom(row) for _ in range(height))
    return png_file(header(width, height, RGB), png_chunk(b"IDAT", zlib.compress(data, 0)))


async def sent(target: AttackTarget, images: Sequence[bytes]) -> Answers:
    """Return the outcomes of requests that start from these images, abandoned after `LIMIT_S`."""
    async with target.channel(target.public, "user") as channel:
        client = ImageClient(channel)
        requests = [replace(SMALL, init_image=InitImage(data, 0.5)) for data in images]
        tasks = [asyncio.create_task(generated(client, request)) for request in requests]
        done, left = await asyncio.wait(tasks, timeout=LIMIT_S)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
    return Counter([task.result() for task in done]) + Counter({"LEFT": len(left)})
