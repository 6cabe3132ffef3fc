"""Bytes that journals keep and clients send, as they were recorded before messages were made by field names."""

import json
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from pentimento.api.frontdoor.v1 import journal_pb2
from pentimento.api.generation.v1 import generation_pb2
from pentimento.api.image.v1 import image_service_pb2 as image_pb
from pentimento.api.vectordb.v1 import vectordb_gateway_service_pb2 as gateway_pb
from pentimento.api.worker.v1 import unet_worker_service_pb2 as worker_pb
from pentimento.wire.codec import converter, to_bytes
from tests.unit.wire.samples import SAMPLES

RECORDED: dict[str, str] = json.loads((Path(__file__).parent / "golden_bytes.json").read_text())
MESSAGES: dict[str, type[Message]] = {
    "spec": generation_pb2.GenerationSpec,
    "route from an image": generation_pb2.Route,
    "route from a latent": generation_pb2.Route,
    "route from noise": generation_pb2.Route,
    "provenance": generation_pb2.Provenance,
    "journalled request": journal_pb2.JournalledRequest,
    "journalled request without options": journal_pb2.JournalledRequest,
    "start image": journal_pb2.StartImage,
    "attempt": generation_pb2.Attempt,
    "grant": generation_pb2.CacheGrant,
    "captured": generation_pb2.CapturedEntries,
    "scope": gateway_pb.CacheScope,
    "request": image_pb.ImageRequest,
    "request of defaults": image_pb.ImageRequest,
    "accepted": image_pb.GenerateResponse,
    "routed": image_pb.GenerateResponse,
    "progress": image_pb.GenerateResponse,
    "completed": image_pb.GenerateResponse,
    "status": image_pb.GetRequestResponse,
    "page": image_pb.ListRequestsResponse,
    "query": image_pb.ListRequestsRequest,
    "credits": worker_pb.WatchCreditsResponse,
    "started": worker_pb.ExecuteResponse,
    "step": worker_pb.ExecuteResponse,
    "result": worker_pb.ExecuteResponse,
}


def test_to_bytes_of_samples_gives_recorded_bytes() -> None:
    assert {name: to_bytes(SAMPLES[name], MESSAGES[name]).hex() for name in RECORDED} == RECORDED


def test_decode_of_recorded_bytes_gives_samples() -> None:
    for name, recorded in RECORDED.items():
        sample: Any = SAMPLES[name]
        message = MESSAGES[name].FromString(bytes.fromhex(recorded))

        assert converter(type(sample), MESSAGES[name]).decode(message) == sample, name
