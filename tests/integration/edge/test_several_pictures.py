"""Several pictures of one call over HTTP."""

import base64

from lab.fixtures.paced_worker import image_of
from tests.integration.edge.conftest import EdgeUnderTest, openai_client


async def test_n_pictures_come_in_order_with_seeds_of_their_own(edge: EdgeUnderTest) -> None:
    answer = await edge.generate(n=3, seed=7, num_inference_steps=1)

    document = answer.json()
    painted = {spec.seed: image_of(spec) for spec in edge.worker.executed}
    assert [picture["seed"] for picture in document["data"]] == [7, 8, 9]
    assert [picture["image_index"] for picture in document["data"]] == [0, 1, 2]
    assert [base64.b64decode(picture["b64_json"]) for picture in document["data"]] == [painted[s] for s in (7, 8, 9)]
    assert document["usage"]["output_tokens"] == 3 * 32 * 32 // 64
    assert "failed" not in document


async def test_a_stream_of_several_tells_of_each(edge: EdgeUnderTest) -> None:
    async with openai_client(edge) as ai:
        stream = await ai.images.generate(prompt="x", n=2, stream=True, extra_body={"num_inference_steps": 1})
        events = [event async for event in stream]

    assert [event.type for event in events] == ["image_generation.completed"] * 2
    assert {event.to_dict()["image_index"] for event in events} == {0, 1}


async def test_a_cost_above_the_limit_of_the_caller_refuses_all(edge: EdgeUnderTest) -> None:
    answer = await edge.generate(n=3, num_inference_steps=1, max_cost=2 * 32 * 32)

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_cost")
    assert edge.worker.executed == []
