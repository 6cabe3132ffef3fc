"""Kill processes of a running suite: they restart, and accepted requests complete."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress

import psutil
import pytest

from pentimento.domain.image_request import CacheMode, Completed, ImageRequest, Progress
from pentimento.sdk import AsyncClient, GeneratedImage, RetryPolicy
from pentimento.supervisor.local import LocalSuite
from pentimento.supervisor.process import wait_until_serving
from pentimento.supervisor.state import marked_processes

PATIENT = RetryPolicy(tries=60, first_pause_s=0.2, max_pause_s=1.0)


@pytest.fixture(autouse=True)
async def wait_for_restarts(suite: LocalSuite) -> AsyncIterator[None]:
    """Wait until every process serves again."""
    yield
    async with asyncio.timeout(120):
        await asyncio.gather(*(wait_until_serving(f"unix:{path}") for path in suite.state.sockets.glob("*.sock")))


def process_of(suite: LocalSuite, module: str) -> psutil.Process:
    for process in marked_processes(suite.state.path):
        with suppress(psutil.NoSuchProcess):  # A killed process may have just ended.
            if module in process.cmdline():
                return process
    raise AssertionError(f"{module} does not run")


async def test_request_survives_its_worker(suite: LocalSuite, client: AsyncClient) -> None:
    wanted = ImageRequest("a red circle", num_inference_steps=60, seed=9, cache=CacheMode.OFF)
    undisturbed = await client.generate(wanted)

    survived = await killed_in_the_middle(suite, client, wanted)

    assert survived.image == undisturbed.data


async def killed_in_the_middle(suite: LocalSuite, client: AsyncClient, wanted: ImageRequest) -> Completed:
    """Kill the worker during the image, and return the result of a second attempt. On a busy machine the image may
    complete before the kill."""
    async with asyncio.timeout(240):
        while True:
            async with aclosing(client.stream(wanted)) as events:
                async for event in events:
                    if isinstance(event, Progress):
                        process_of(suite, "services.unet_worker").kill()
                        break
                completed = [event async for event in events if isinstance(event, Completed)]
            if completed[0].provenance.attempt_number > 1:
                return completed[0]
            await wait_until_serving(f"unix:{suite.state.sockets / 'tiny-heavy-0'}.sock")


async def test_same_key_finds_its_request_after_the_frontdoor_was_killed(suite: LocalSuite) -> None:
    wanted = ImageRequest("a red circle", num_inference_steps=60, seed=9, cache=CacheMode.OFF)
    frontdoor = process_of(suite, "services.frontdoor")
    async with AsyncClient(suite.endpoint.public, retries=PATIENT) as client:
        generating = asyncio.create_task(client.generate(wanted, idempotency_key="survives-the-frontdoor"))
        async with aclosing(client.stream(wanted, idempotency_key="survives-the-frontdoor")) as events:
            async for event in events:
                if isinstance(event, Progress):
                    break
            frontdoor.kill()
            later = [event async for event in events if isinstance(event, Completed)]
        image = await generating

    assert image.data == later[0].image


@pytest.mark.parametrize("module", ["services.embedder", "services.vectordb_gateway", "services.controller"])
async def test_image_completes_without_the_service(suite: LocalSuite, client: AsyncClient, module: str) -> None:
    process_of(suite, module).kill()

    image = await client.generate(ImageRequest("a red circle", num_inference_steps=4))

    assert image.data


async def test_restart_of_controller_under_load_costs_no_attempt(suite: LocalSuite, client: AsyncClient) -> None:
    """Repeat the round: a worker without a processor for two seconds loses its requests, even if another process was
    killed."""
    async with asyncio.timeout(240):
        while {image.provenance.attempt_number for image in await images_around_a_kill(suite, client)} != {1}:
            pass


async def images_around_a_kill(suite: LocalSuite, client: AsyncClient) -> list[GeneratedImage]:
    """Return images requested before the controller was killed, during its absence, and after its restart."""
    wanted = ImageRequest("a red circle", num_inference_steps=4, seed=9, cache=CacheMode.OFF)
    controller = process_of(suite, "services.controller")
    await wait_until_serving(f"unix:{suite.state.sockets / 'controller.sock'}")
    images: list[GeneratedImage] = []
    back = asyncio.Event()

    async def asking() -> None:
        while not back.is_set():
            images.append(await client.generate(wanted))

    async def more(count: int) -> None:
        wanted_count = len(images) + count
        while len(images) < wanted_count:  # noqa: ASYNC110 - three tasks append
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as load:
        for _ in range(3):
            load.create_task(asking())
        await more(3)
        controller.kill()
        await asyncio.to_thread(controller.wait)
        await more(3)
        await wait_until_serving(f"unix:{suite.state.sockets / 'controller.sock'}")
        await more(3)
        back.set()
    return images


async def test_lost_objects_cost_saved_steps_and_are_repaired(suite: LocalSuite, client: AsyncClient) -> None:
    wanted = ImageRequest("a tiny purple cross at the bottom in a meadow", num_inference_steps=20)
    await generate_until(client, wanted, starts_from_the_cache)
    async with asyncio.timeout(120):
        # A new entry may be committed between the deletion and the lookup; the next round deletes its objects.
        while True:
            for path in (suite.state.path / "objects").rglob("cache.*"):
                path.unlink(missing_ok=True)
            robbed = await client.generate(wanted)
            if "OBJECT_MISSING" in str(robbed.provenance.notes):
                break

    assert robbed.data
    assert robbed.provenance.steps_run == 20
    await generate_until(client, wanted, starts_from_the_cache)


def starts_from_the_cache(image: GeneratedImage) -> bool:
    return image.provenance.steps_saved > 0


async def generate_until(
    client: AsyncClient, wanted: ImageRequest, holds: Callable[[GeneratedImage], bool]
) -> GeneratedImage:
    """Repeat the request: the cache is written and repaired after an answer, and a slow lookup is skipped."""
    async with asyncio.timeout(120):
        while not holds(image := await client.generate(wanted)):
            pass
    return image
