"""`pentimento up` with an operator's classifiers: the prompt that one refuses, and the image that the other does."""

from pathlib import Path

import httpx
import pytest

from lab.fixtures.classifier_directories import write_image_classifier, write_prompt_classifier
from pentimento.supervisor.local import LocalSuite, local_suite
from tests.support.edge_packages import missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())}")


def answer(suite: LocalSuite, **values: object) -> httpx.Response:
    body = {"prompt": "a red circle", "num_inference_steps": 2, "cache": "off", **values}
    return httpx.post(f"http://{suite.endpoint.http}/v1/images/generations", json=body, timeout=120)


# Biases that no input outweighs: each classifier is certain.
SAFE, UNSAFE = (100.0, 0.0), (0.0, 100.0)


@pytest.mark.parametrize(
    ("prompts", "images", "reason"), [(UNSAFE, SAFE, "UNSAFE_PROMPT"), (SAFE, UNSAFE, "UNSAFE_IMAGE"), (SAFE, SAFE, "")]
)
def test_suite_refuses_unsafe_prompt_and_image(
    tmp_path: Path, prompts: tuple[float, float], images: tuple[float, float], reason: str
) -> None:
    flags = ["--prompt-classifier", str(write_prompt_classifier(tmp_path / "prompts", prompts))]
    flags += ["--image-classifier", str(write_image_classifier(tmp_path / "images", images)), "--http", "127.0.0.1:0"]
    with local_suite(flags) as suite:
        given = answer(suite)

    if not reason:
        assert (given.status_code, len(given.json()["data"])) == (200, 1)
        return
    error = given.json()["error"]
    assert (given.status_code, error["code"], error["type"]) == (400, reason, "invalid_request_error")
    assert "'nsfw'" in error["message"]
