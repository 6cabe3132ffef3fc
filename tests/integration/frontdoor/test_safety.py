"""Test a frontdoor with classifiers over sockets: unsafe prompts and images are refused with their label, and none
passes unchecked."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab.fixtures.frontdoor_suite import REQUEST, FrontdoorSuite, running_suite, until
from lab.fixtures.paced_worker import PacedWorker
from pentimento.api.discriminator.v1.discriminator_service_pb2_grpc import add_DiscriminatorServiceServicer_to_server
from pentimento.api.safety.v1.safety_service_pb2_grpc import add_SafetyServiceServicer_to_server
from pentimento.clients.discriminator import DiscriminatorClient
from pentimento.domain.errors import PentimentoError, Unavailable, UnsafeContent
from pentimento.domain.image_request import Completed, ImageFailed, Progress
from pentimento.domain.jobs import RequestQuery, RequestState
from pentimento.domain.safety import SafetyVerdict
from pentimento.rpc import RpcChannelSettings, RpcServer, RpcServerSettings
from pentimento.rpc.channel import channel_opener
from services.discriminator.safety import FULL_NAME, SafetyChecks, SafetyServicer
from services.discriminator.scoring import Discriminator
from services.discriminator.servicer import FULL_NAME as DISCRIMINATOR
from services.discriminator.servicer import DiscriminatorServicer
from services.frontdoor.routing.abilities import DiscriminatorAbilities
from tests.support.calls import last_completed
from tests.support.images import a_png

# The verdict on what is not listed.
SAFE = SafetyVerdict(0.1, 0.5, "nsfw", "sha256:0")


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
    return running_suite(folder, discriminator_addresses=(address,), safety_checks=subjects)


async def refusal(suite: FrontdoorSuite, prompt: str = REQUEST.prompt, **fields: Any) -> PentimentoError:
    with pytest.raises(PentimentoError) as caught:
        await last_completed(suite.client.generate(replace(REQUEST, prompt=prompt, **fields)))
    return caught.value


async def test_unsafe_prompt_is_refused_before_anything_is_accepted(folder: Path, worker: PacedWorker) -> None:
    listed = Listed(lambda prompt: "naked" in prompt)
    async with classifying(folder, prompt=listed) as address, gated(folder, address, "prompt") as suite:
        error = await refusal(suite, "naked")
        made = await last_completed(suite.client.generate(REQUEST))

    assert isinstance(error, UnsafeContent)
    assert (error.reason, error.verdict) == ("UNSAFE_PROMPT", SafetyVerdict(0.9, 0.5, "nsfw", "sha256:0"))
    assert made.image
    assert (made.provenance.prompt_verdict, made.provenance.image_verdict) == (SAFE, None)
    assert len(worker.orders) == 1


async def test_unsafe_image_is_neither_returned_nor_kept(folder: Path, worker: PacedWorker) -> None:
    async with classifying(folder, image=Listed(lambda _: True)) as address, gated(folder, address, "image") as suite:
        error = await refusal(suite)
        (listed,) = (await suite.client.list_requests(RequestQuery())).requests
        status = await suite.client.get_request(listed.request_id)

    assert isinstance(error, UnsafeContent)
    assert (error.reason, error.verdict) == ("UNSAFE_IMAGE", SafetyVerdict(0.9, 0.5, "nsfw", "sha256:0"))
    assert (status.state, status.completed, status.error_reason) == (RequestState.FAILED, None, "UNSAFE_IMAGE")
    assert not [path for path in (folder / "objects").rglob("*") if path.is_file() and "results" in path.parts]


async def test_safe_image_is_returned_and_its_previews_are_withheld(folder: Path, worker: PacedWorker) -> None:
    async with classifying(folder, image=Listed(lambda _: False)) as address, gated(folder, address, "image") as suite:
        events = [event async for event in suite.client.generate(REQUEST, preview_interval_steps=1)]

    assert isinstance(events[-1], Completed)
    assert events[-1].image
    assert (events[-1].provenance.prompt_verdict, events[-1].provenance.image_verdict) == (None, SAFE)
    assert not [event for event in events if isinstance(event, Progress) and event.preview]
    assert worker.orders[0].preview_interval_steps == 0


async def test_unsafe_image_of_several_has_its_verdict(folder: Path, worker: PacedWorker) -> None:
    unsafe = iter((True, False))
    listed = Listed(lambda _: next(unsafe))
    async with classifying(folder, image=listed) as address, gated(folder, address, "image") as suite:
        events = [event async for event in suite.client.generate(replace(REQUEST, image_count=2))]

    (failed,) = [event for event in events if isinstance(event, ImageFailed)]
    (made,) = [event for event in events if isinstance(event, Completed)]
    assert isinstance(failed.error, UnsafeContent)
    assert failed.error.verdict == SafetyVerdict(0.9, 0.5, "nsfw", "sha256:0")
    assert made.provenance.image_verdict == SAFE


async def test_verdict_on_a_prompt_outlasts_a_restart(folder: Path, worker: PacedWorker) -> None:
    worker.hold.clear()
    async with classifying(folder, prompt=Listed(lambda _: False)) as address:
        async with gated(folder, address, "prompt") as suite:
            stream = suite.client.generate(REQUEST, "key")
            await suite.accepted(stream)
            await worker.wait_until(lambda: worker.running)
        worker.hold.set()
        async with gated(folder, address, "prompt") as suite:
            *_, last = await suite.events(idempotency_key="key")

    assert isinstance(last, Completed)
    assert last.provenance.prompt_verdict == SAFE


async def test_prompt_without_a_verdict_is_refused(folder: Path, worker: PacedWorker) -> None:
    async with classifying(folder, image=Listed(lambda _: False)) as address, gated(folder, address, "prompt") as suite:
        error = await refusal(suite)

    assert isinstance(error, Unavailable)
    assert (error.reason, "NO_CLASSIFIER" in error.message) == ("SAFETY_UNAVAILABLE", True)
    assert worker.orders == []


class CountedChecks(SafetyServicer):
    """Count the checks, which end as those of a process without classifiers."""

    def __init__(self) -> None:
        super().__init__(SafetyChecks(frozenset(), dict, 4, nullcontext))
        self.count = 0

    async def Check(self, request: Any, context: Any) -> Any:
        self.count += 1
        return await super().Check(request, context)


@asynccontextmanager
async def stating(
    folder: Path, cascades: tuple[str, ...], classifiers: tuple[str, ...], checks: SafetyServicer | None = None
) -> AsyncIterator[str]:
    """Serve the statement of a discriminator process, and yield its address."""
    server = RpcServer(RpcServerSettings(listen=(f"unix:{folder / 's'}",)), "discriminator")
    scorer = Discriminator(SimpleNamespace(cascades=cascades, prompt_cascades=()), classifiers)
    server.add(add_DiscriminatorServiceServicer_to_server, DiscriminatorServicer(scorer, "d"), DISCRIMINATOR)
    server.add(add_SafetyServiceServicer_to_server, checks or CountedChecks(), FULL_NAME)
    await server.start()
    try:
        yield server.bound_addresses[0]
    finally:
        await server.stop()


@pytest.mark.parametrize(
    ("cascades", "classifiers", "scores", "checks", "missing"),
    [
        (("a>b",), ("prompt",), ["a>b"], ["prompt"], ("image",)),
        ((), ("prompt", "image"), [], ["prompt", "image"], ()),
        (("a>b", "c>d"), (), ["a>b", "c>d"], [], ("image", "prompt")),
        ((), (), ["a>b", "c>d"], [], ("image", "prompt")),
    ],
    ids=["both", "classifiers only", "cascades only", "any cascade"],
)
async def test_discriminator_is_called_for_what_it_states(
    folder: Path,
    cascades: tuple[str, ...],
    classifiers: tuple[str, ...],
    scores: list[str],
    checks: list[str],
    missing: tuple[str, ...],
) -> None:
    opening = channel_opener(RpcChannelSettings())
    async with stating(folder, cascades, classifiers) as address:
        away = f"unix:{folder / 'away'}"
        abilities = DiscriminatorAbilities(
            lambda at: DiscriminatorClient(opening(at)), (address, away), frozenset(("image", "prompt"))
        )
        await abilities.ask()

        assert [one for one in ("a>b", "c>d") if abilities.may_score(address, one)] == scores
        assert [one for one in ("prompt", "image") if abilities.may_check(address, one)] == checks
        assert abilities.may_score(away, "a>b") and abilities.may_check(away, "image"), "without a statement: anything"
        assert abilities.missing == missing


async def test_prompt_is_checked_by_the_process_that_states_a_classifier(folder: Path, worker: PacedWorker) -> None:
    scorer = CountedChecks()
    async with (
        classifying(folder, prompt=Listed(lambda _: False)) as able,
        stating(folder, ("a>b",), (), scorer) as address,
        running_suite(folder, discriminator_addresses=(address, able), safety_checks=("prompt",)) as suite,
    ):
        await until(lambda: not suite.frontdoor.abilities.may_check(address, "prompt"))
        made = [await last_completed(suite.client.generate(REQUEST)) for _ in range(3)]

    assert [bool(one.image) for one in made] == [True] * 3
    assert scorer.count == 0


async def test_frontdoor_without_a_reachable_classifier_says_so(
    folder: Path, worker: PacedWorker, caplog: pytest.LogCaptureFixture
) -> None:
    async with stating(folder, ("a>b",), ("prompt",)) as address:
        settings = {"discriminator_addresses": (address,), "safety_checks": ("prompt", "image")}
        async with running_suite(folder, **settings) as suite:
            await until(lambda: suite.frontdoor.abilities.missing == ("image",))
            await until(lambda: "has a classifier for --safety-checks image: nothing is returned" in caplog.text)


async def test_image_waits_for_a_verdict_until_its_deadline(folder: Path, worker: PacedWorker) -> None:
    async with gated(folder, f"unix:{folder / 'nobody'}", "image") as suite:
        error = await refusal(suite, deadline_ms=1500)

    assert error.reason in ("SAFETY_UNAVAILABLE", "DEADLINE_EXCEEDED")
