"""The codec names a value that a message cannot carry, and never repeats it."""

from typing import Any

import pytest

from pentimento.api.image.v1 import image_service_pb2 as pb
from pentimento.clients.image import generate_to_proto
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import InitImage
from pentimento.domain.image_request import AskedControlNet, AskedLora, ReplayInput, ReplayRequest
from pentimento.domain.jobs import RequestQuery
from pentimento.wire.codec import encode
from tests.support.values import a_request

HALF = "canary\ud800"
WRONG: Any = "canary"
TEXT = "must be text that UTF-8 can carry"


UNWRITABLE: list[tuple[dict[str, Any], str]] = [
    ({"seed": -1}, "seed: must be between 0 and 18446744073709551615"),
    ({"seed": 2**64}, "seed: must be between 0 and 18446744073709551615"),
    ({"seed": 10**5000}, "seed: must be between 0 and 18446744073709551615"),
    ({"width_px": 2**63}, "width_px: must be between -9223372036854775808 and 9223372036854775807"),
    ({"prompt": HALF}, f"prompt: {TEXT}"),
    ({"model": HALF}, f"model: {TEXT}"),
    ({"loras": (AskedLora("a"), AskedLora(HALF))}, rf"loras\[1\]\.name: {TEXT}"),
    ({"controlnets": (AskedControlNet(HALF, b""),)}, rf"controlnets\[0\]\.name: {TEXT}"),
    ({"prompt": 7}, "prompt: must be text, got int"),
    ({"prompt": b"canary\xff"}, "prompt: must be text, got bytes"),
    ({"seed": "canary"}, "seed: must be a whole number, got str"),
    ({"num_inference_steps": 1.5}, "num_inference_steps: must be a whole number, got float"),
    ({"width_px": (512,)}, "width_px: must be a whole number, got tuple"),
    ({"guidance_scale": "canary"}, "guidance_scale: must be a number, got str"),
    ({"guidance_scale": 10**400}, "guidance_scale: must be a number, got int"),
    ({"binding_steps": "canary"}, "binding_steps: must be true or false, got str"),
    ({"cache": "off"}, "cache: must be of CacheMode, got str"),
    ({"format": ["png"]}, "format: must be of ImageFormat, got list"),
    ({"loras": None}, "loras: must be a tuple of AskedLora, got NoneType"),
    ({"loras": ("canary",)}, r"loras\[0\]: must be of AskedLora, got str"),
    ({"loras": (AskedLora("a", WRONG),)}, r"loras\[0\]\.scale: must be a number, got str"),
    ({"controlnets": (AskedControlNet("a", WRONG),)}, r"controlnets\[0\]\.conditioning_image: must be bytes"),
    ({"init_image": b"canary"}, "init_image: must be of InitImage, got bytes"),
    ({"init_image": InitImage(b"", WRONG)}, r"init_image\.strength: must be a number, got str"),
    ({"init_image": InitImage(b"", 0.5, WRONG)}, r"init_image\.mask: must be bytes, got str"),
]


def test_encode_of_request_names_unwritable_value() -> None:
    for values, says in UNWRITABLE:
        with pytest.raises(InvalidArgument, match=f"^{says}") as refused:
            encode(a_request(**values), pb.ImageRequest)

        assert "canary" not in str(refused.value)


def test_generate_to_proto_names_unwritable_option() -> None:
    with pytest.raises(InvalidArgument, match=r"^preview_interval_steps: must be between 0 and 4294967295"):
        generate_to_proto(a_request(), "", -1)
    with pytest.raises(InvalidArgument, match=f"^idempotency_key: {TEXT}"):
        generate_to_proto(a_request(), HALF, 0)
    with pytest.raises(InvalidArgument, match=r"^seed: "):
        generate_to_proto(a_request(seed=-1), "", 0)


def test_encode_of_replay_names_unwritable_value() -> None:
    with pytest.raises(InvalidArgument, match=f"^request_id: {TEXT}"):
        encode(ReplayRequest(HALF), pb.ReplayRequest)
    with pytest.raises(InvalidArgument, match=r"^inputs\[0\]\.data: must be bytes, got str"):
        encode(ReplayRequest("r-1", (ReplayInput("init_image.image", WRONG),)), pb.ReplayRequest)


def test_encode_of_query_names_unwritable_value() -> None:
    with pytest.raises(InvalidArgument, match=r"^states\[0\]: must be of RequestState, got str"):
        encode(RequestQuery(frozenset({WRONG})), pb.ListRequestsRequest)
    with pytest.raises(InvalidArgument, match=r"^page_size: must be a whole number, got str"):
        encode(RequestQuery(page_size=WRONG), pb.ListRequestsRequest)
