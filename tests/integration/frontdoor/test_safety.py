"""Test a frontdoor with classifiers over sockets: unsafe prompts and images are refused with their label, and none
passes unchecked."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lab.fixtures.frontdoor_suite import REQUEST, FrontdoorSuite, running_suite
from lab.fixtures.paced_worker import PacedWorker
from pentimento.api.safety.v1.safety_service_pb2_grpc import add_SafetyServiceServicer_to_server
from pentimento.domain.errors import InvalidArgument, PentimentoError, Unavailable
from pentimento.domain.image_request import Progress
from pentimento.domain.jobs import RequestQuery, RequestState
from pentimento.domain.safety import SafetyVerdict
from pentimento.rpc import RpcServer, RpcServerSettings
from services.discriminator.safety import FULL_NAME, SafetyChecks, SafetyServicer
from tests.support.calls import last_completed
from tests.support.images import a_png


@dataclass
class Listed:
    """Classify inputs as unsafe by a rule."""

    unsafe: Callable[[Any], bool]

    @property
    def prepare(self) -> Callable[[Any], Any]:
        return lambda one: one

    def verdicts(self, prepared: Sequence[Any]) -> list[SafetyVerdict]:
        return [SafetyVerdict(0.9 if self.unsafe(one) else 0.1, 0.5, "nsfw", "sha256:0") for one in prepared]


@asynccontextmanager
async def classifying(folder: Path, **classifiers: Listed) -> AsyncIterator[str]:
    """Serve classifiers by subject, and yield their address."""
    server = RpcServer(RpcServerSettings(listen=(f"unix:{folder / 'c'}",)), "discriminator")
    checks = SafetyChecks(frozenset(classifiers), lambda: classifiers, 4, nullcontext)
    server.add(add_SafetyServiceServicer_to_server, SafetyServicer(checks), FULL_NAME)
    await server.start()
    await checks.open()
    try:
        yield server.bound_addresses[0]
    finally:
        await server.stop()
        await checks.close()


@pytest.fixture(autouse=True)
def real_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """The classifiers decode what the worker sends."""
    monkeypatch.setattr("lab.fixtures.paced_worker.image_of", lambda spec: a_png())


def gated(folder: Path, address: str, *subjects: str) -> Any:
    return running_suite(folder, safety_addresses=(address,), safety_checks=subjects)


async def refusal(suite: FrontdoorSuite, prompt: str = REQUEST.prompt, **fields: Any) -> PentimentoError:
    with pytest.raises(PentimentoError) as caught:
        await last_completed(suite.client.generate(replace(REQUEST, prompt=prompt, **fields)))
    return caught.value


async def test_unsafe_prompt_is_refused_before_anything_is_accepted(folder: Path, worker: PacedWorker) -> None:
    listed = Listed(lambda prompt: "naked" in prompt)
    async with classifying(folder, prompt=listed) as address, gated(folder, address, "prompt") as suite:
        error = await refusal(suite, "naked")
        made = await last_completed(suite.client.generate(REQUEST))

    assert isinstance(error, InvalidArgument)
    assert (error.reason, error.metadata) == (
        "UNSAFE_PROMPT",
        {"label": "nsfw", "probability": "0.900", "limit": "0.5"},
    )
    assert made.image
    assert len(worker.orders) == 1


async def test_unsafe_image_is_neither_returned_nor_kept(folder: Path, worker: PacedWorker) -> None:
    async with classifying(folder, image=Listed(lambda _: True)) as address, gated(folder, address, "image") as suite:
        error = await refusal(suite)
        (listed,) = (await suite.client.list_requests(RequestQuery())).requests
        status = await suite.client.get_request(listed.request_id)

    assert (type(error), error.reason, error.metadata["label"]) == (InvalidArgument, "UNSAFE_IMAGE", "nsfw")
    assert (status.state, status.completed, status.error_reason) == (RequestState.FAILED, None, "UNSAFE_IMAGE")
    assert not [path for path in (folder / "objects").rglob("*") if path.is_file() and "results" in path.parts]


async def test_safe_image_is_returned_and_its_previews_are_withheld(folder: Path, worker: PacedWorker) -> None:
    async with classifying(folder, image=Listed(lambda _: False)) as address, gated(folder, address, "image") as suite:
        events = [event async for event in suite.client.generate(REQUEST, preview_interval_steps=1)]

    assert events[-1].image  # type: ignore[union-attr]
    assert not [event for event in events if isinstance(event, Progress) and event.preview]
    assert worker.orders[0].preview_interval_steps == 0


async def test_prompt_without_a_verdict_is_refused(folder: Path, worker: PacedWorker) -> None:
    async with classifying(folder, image=Listed(lambda _: False)) as address, gated(folder, address, "prompt") as suite:
        error = await refusal(suite)

    assert isinstance(error, Unavailable)
    assert (error.reason, "NO_CLASSIFIER" in error.message) == ("SAFETY_UNAVAILABLE", True)
    assert worker.orders == []


async def test_image_waits_for_a_verdict_until_its_deadline(folder: Path, worker: PacedWorker) -> None:
    async with gated(folder, f"unix:{folder / 'nobody'}", "image") as suite:
        error = await refusal(suite, deadline_ms=1500)

    assert error.reason in ("SAFETY_UNAVAILABLE", "DEADLINE_EXCEEDED")
