"""Test image edits over HTTP: forms as OpenAI's client sends them."""

import base64
from typing import Any

import pytest

from lab.fixtures.paced_worker import image_of
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import InitImage
from tests.integration.edge.conftest import EdgeUnderTest, openai_client
from tests.support.images import a_png


async def edit(edge: EdgeUnderTest, **options: Any) -> Any:
    async with openai_client(edge) as ai:
        return await ai.images.edit(**{"prompt": "a red circle", "image": a_png(), **options})


async def test_edit_starts_from_its_image(edge: EdgeUnderTest) -> None:
    for image in (a_png(), [a_png()], ("some name.png", a_png(), "image/png")):
        answer = await edit(edge, image=image, extra_body={"strength": 0.5, "num_inference_steps": 4, "seed": 3})

        spec = edge.worker.executed[-1]
        assert spec.init_image is not None
        assert (spec.init_image.strength, spec.num_inference_steps, spec.seed) == (0.5, 4, 3)
        assert base64.b64decode(answer.data[0].b64_json) == image_of(spec)
        assert answer.usage.input_tokens_details.image_tokens == 64 * 64 // 64
    assert len(edge.worker.executed) == 3


async def test_edit_without_a_size_keeps_its_images(edge: EdgeUnderTest) -> None:
    """Open WebUI sends none."""
    answers = [await edit(edge, image=a_png(52, 40), **size) for size in ({}, {"size": "auto"}, {"size": "32x32"})]

    assert [answer.size for answer in answers] == ["48x40", "48x40", "32x32"]


def data_url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


async def test_edit_may_be_json_with_data_urls(edge: EdgeUnderTest) -> None:
    """OpenAI's API describes it; its clients have no method for it, so the test sends it by `post`."""
    from openai import BadRequestError
    from openai.types import ImagesResponse

    mask = a_png(colour="white")
    body = {
        "prompt": "a red circle",
        "images": [{"image_url": data_url(a_png())}],
        "mask": {"image_url": data_url(mask)},
        "n": None,
        "strength": 0.5,
        "num_inference_steps": 4,
    }
    async with openai_client(edge) as ai:
        answer = await ai.post("/images/edits", body=body, cast_to=ImagesResponse)
        with pytest.raises(BadRequestError) as refused:
            fetched = {**body, "images": [{"image_url": f"{edge.url}/health"}]}
            await ai.post("/images/edits", body=fetched, cast_to=ImagesResponse)

    (spec,) = edge.worker.executed
    assert spec.init_image == InitImage(a_png(), 0.5, mask)
    assert answer.data is not None and base64.b64decode(answer.data[0].b64_json or "") == image_of(spec)
    assert refused.value.param == "images[0].image_url" and "no URL is fetched" in str(refused.value)


async def test_job_may_be_an_edit_as_json(edge: EdgeUnderTest) -> None:
    body = {"prompt": "x", "image": data_url(a_png()), "strength": 0.5, "num_inference_steps": 4}

    job = (await edge.http.post("/v1/jobs", json=body)).json()
    await edge.http.get(f"/v1/jobs/{job['id']}/events")

    assert edge.worker.executed[0].init_image == InitImage(a_png(), 0.5)


async def test_streamed_edit_ends_with_its_image(edge: EdgeUnderTest) -> None:
    async with openai_client(edge) as ai:
        stream = await ai.images.edit(prompt="a red circle", image=a_png(), stream=True)
        events = [event async for event in stream]

    assert [event.type for event in events] == ["image_edit.completed"]


@pytest.mark.parametrize("image", [a_png(), [a_png()]], ids=["image", "image[]"])
async def test_mask_goes_with_its_image(edge: EdgeUnderTest, image: bytes | list[bytes]) -> None:
    mask = a_png(colour="white")

    answer = await edit(edge, image=image, mask=mask, extra_body={"strength": 1.0, "num_inference_steps": 2})

    spec = edge.worker.executed[-1]
    assert spec.init_image == InitImage(a_png(), 1.0, mask)
    assert base64.b64decode(answer.data[0].b64_json) == image_of(spec)


WRONG_FORMS: tuple[tuple[dict[str, Any], str, str], ...] = (
    ({"image": b"GIF89a no picture"}, "image", "PNG"),
    ({"image": a_png(80, 40)}, "image", "must have sides of 8 to 64 pixels without a size, got 80 x 40"),
    ({"extra_body": {"strength": 2}}, "strength", "at most 1, got 2"),
    ({"extra_body": {"strength": "much"}}, "strength", "must be a number"),
    ({"extra_body": {"seed": [1, 2]}}, "seed[]", "must occur once"),
)


async def test_wrong_field_of_a_form_is_named(edge: EdgeUnderTest) -> None:
    from openai import BadRequestError

    for options, param, says in WRONG_FORMS:
        with pytest.raises(BadRequestError) as refused:
            await edit(edge, **options)

        assert refused.value.param == param and says in str(refused.value)
    assert edge.worker.executed == []


async def test_mask_refused_by_worker_is_named_as_parameter(edge: EdgeUnderTest) -> None:
    edge.worker.fail_with = InvalidArgument.of("spec.init_image.mask", "must be black somewhere; it is all white")
    files = [("image", a_png()), ("mask", a_png(colour="white"))]

    answer = await edge.http.post("/v1/images/edits", data={"prompt": "x"}, files=files)

    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "mask")
    assert error["message"] == "mask: must be black somewhere; it is all white"
