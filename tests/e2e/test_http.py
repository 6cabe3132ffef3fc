"""Test HTTP of `pentimento up` over the whole suite, with real models."""

import base64
import io
import time
from typing import Any

import httpx
import pytest
from PIL import Image

from pentimento.supervisor.local import LocalSuite
from tests.support.edge_packages import missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())}")


def post(suite: LocalSuite, **values: Any) -> httpx.Response:
    document = {"prompt": "a red circle on a white background", "num_inference_steps": 4, "cache": "off", **values}
    return httpx.post(f"http://{suite.endpoint.http}/v1/images/generations", json=document, timeout=120)


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp"])
def test_image_has_requested_format(suite: LocalSuite, kind: str) -> None:
    answer = post(suite, output_format=kind, seed=3).json()

    with Image.open(io.BytesIO(base64.b64decode(answer["data"][0]["b64_json"]))) as image:
        assert (image.format, f"{image.width}x{image.height}") == (kind.upper(), answer["size"])


def test_http_and_grpc_give_equal_images(suite: LocalSuite) -> None:
    from pentimento.sdk import CacheMode, Client, ImageRequest

    request = ImageRequest("a red circle on a white background", num_inference_steps=4, seed=9, cache=CacheMode.OFF)
    with Client(suite.endpoint.public) as client:
        image = client.generate(request)

    assert base64.b64decode(post(suite, seed=9).json()["data"][0]["b64_json"]) == image.data


def test_log_names_http_address(suite: LocalSuite) -> None:
    # The frontdoor may answer the edge's health check late.
    while (told := httpx.get(f"http://{suite.endpoint.http}/ready", timeout=60)).status_code == 503:
        time.sleep(0.1)
    assert told.json() == {"status": "ready"}
    assert f"HTTP      http://{suite.endpoint.http} (the console" in suite.log("up")
