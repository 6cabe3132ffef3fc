"""What the frontdoor journals of a request: all of it comes back, or it is refused."""

import json
from pathlib import Path
from random import Random

import pytest
from google.protobuf.message import Message

from pentimento.api.frontdoor.v1 import journal_pb2 as pb
from pentimento.domain.errors import Internal
from pentimento.domain.generation import GenerationSpec, Scheduler
from pentimento.domain.image_request import CacheMode, ImageFormat, ResolvedRequest
from pentimento.wire.codec import encode
from services.frontdoor.journal.recovery import (
    JOURNALLED_REQUEST,
    resolved_from_bytes,
    resolved_to_bytes,
    start_image_from_bytes,
)
from tests.unit.wire import samples
from tests.unit.wire.random_values import random_value

RECORDED = json.loads((Path(samples.__file__).parent / "golden_bytes.json").read_text())
SPEC = GenerationSpec("a red circle", "", "tiny", 32, 32, 10, 3.0, Scheduler.EULER, 7)
RESOLVED = ResolvedRequest(SPEC, CacheMode.OFF, ImageFormat.WEBP, None, 5_000)


@pytest.mark.parametrize("seed", range(20))
def test_resolved_from_bytes_returns_request_written(seed: int) -> None:
    resolved = random_value(ResolvedRequest, Random(seed))

    assert resolved_from_bytes(resolved_to_bytes(resolved), JOURNALLED_REQUEST) == resolved


MESSAGE = encode(RESOLVED, pb.JournalledRequest)


def with_unknown_field(message: Message) -> bytes:
    """As a newer version would write it: field 99, a number."""
    return message.SerializeToString() + b"\x98\x06\x01"


def with_unknown_lora_field() -> bytes:
    lora = with_unknown_field(encode(RESOLVED, pb.JournalledRequest).spec.loras.add(name="neon"))
    spec = encode(RESOLVED, pb.JournalledRequest).spec.SerializeToString() + b"\x5a" + bytes([len(lora)]) + lora
    return b"\x0a" + bytes([len(spec)]) + spec


@pytest.mark.parametrize(
    ("body", "body_format"),
    [
        pytest.param(
            with_unknown_field(encode(RESOLVED, pb.JournalledRequest)), JOURNALLED_REQUEST, id="a newer field"
        ),
        pytest.param(with_unknown_lora_field(), JOURNALLED_REQUEST, id="a newer field deep inside"),
        pytest.param(b"\xff\xff", JOURNALLED_REQUEST, id="no message"),
        pytest.param(b"", JOURNALLED_REQUEST, id="nothing"),
        pytest.param(resolved_to_bytes(RESOLVED), 2, id="a newer format"),
        pytest.param(resolved_to_bytes(RESOLVED), 0, id="the format before bodies had one"),
    ],
)
def test_resolved_from_bytes_refuses_body_not_understood(body: bytes, body_format: int) -> None:
    with pytest.raises(Internal) as caught:
        resolved_from_bytes(body, body_format)

    assert caught.value.reason == "UNREADABLE_REQUEST"


@pytest.mark.parametrize("name", ["journalled request", "journalled request without options"])
def test_resolved_from_bytes_reads_recorded_body(name: str) -> None:
    assert resolved_from_bytes(bytes.fromhex(RECORDED[name]), JOURNALLED_REQUEST) == samples.SAMPLES[name]


def test_start_image_from_bytes_refuses_other_bytes() -> None:
    assert start_image_from_bytes(bytes.fromhex(RECORDED["start image"])) == samples.SAMPLES["start image"]
    with pytest.raises(Internal, match="cannot read the journalled request"):
        start_image_from_bytes(b"\xff\xff")
