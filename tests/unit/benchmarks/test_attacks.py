"""Test that the hostile inputs work: a bomb that does not explode proves nothing."""

import io
import zlib
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.attacks import connections
from benchmarks.attacks.calls import nested, varint
from benchmarks.attacks.pictures import noise, weapons
from benchmarks.attacks.target import AttackTarget
from pentimento.api.image.v1 import image_service_pb2 as pb
from tests.support.edge_packages import missing


@pytest.fixture(scope="module")
def images() -> dict[str, bytes]:
    return weapons()


@pytest.mark.parametrize(("name", "size"), [("wide", (16_777_216, 1)), ("tall", (1, 16_777_216))])
def test_hostile_image_is_small_and_valid(
    images: dict[str, bytes], name: str, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with Image.open(io.BytesIO(images[name])) as image:
        image.load()

        assert image.size == size
    assert len(images[name]) < 40_000


def test_two_header_image_has_different_headers(images: dict[str, bytes]) -> None:
    data = images["two headers"]

    assert data.count(b"IHDR") == 2
    assert int.from_bytes(data[16:20], "big") == 64


def test_text_bomb_inflates_thousandfold(images: dict[str, bytes]) -> None:
    data = images["text bomb"]
    start = data.index(b"zTXta\0\0") + 7

    assert len(zlib.decompressobj().decompress(data[start:])) == 100 << 20
    assert len(data) < 1 << 20


def test_noise_image_has_largest_allowed_size() -> None:
    assert 7.9 * 2**20 < len(noise(1670, 1670)) <= 8 << 20


def test_nested_messages_are_well_formed() -> None:
    message = pb.GenerateRequest.FromString(nested(b"\x0a", 1))

    assert message.HasField("request")
    assert varint(300) == b"\xac\x02"


@pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())}")
async def test_silent_http_connections_exceed_limit_and_health_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lab.fixtures.edge_suite import running_edge

    monkeypatch.setattr(connections, "HOLD_S", 0.1)
    async with running_edge(tmp_path, f"unix:{tmp_path / 'f'}") as edge:
        target = AttackTarget({}, {}, "", str(tmp_path), edge.listener.address)
        answers = await connections.silent_http_connections(target)

    assert answers["CONNECTED"] == 1500
    assert {answer for answer in answers if answer != "CONNECTED"} == {"ANOTHER CLIENT: HTTP/1.1 200 OK"}
