"""The choice of a discriminator."""

import math
from collections import Counter
from typing import Any

import pytest
from prometheus_client import REGISTRY

from pentimento.dataplane.events import FailureKind
from pentimento.domain import errors
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import FailedPrecondition, Unavailable
from pentimento.domain.fleet import ComponentPlacement, ReplicaKind, ServiceEndpoint
from pentimento.domain.foresight import NO_PROMPT_HEAD, PromptForesight
from services.frontdoor.routing.discriminators import Discriminators
from services.frontdoor.workers.attempts import failure_kind

PROMPT = Embedding(b"\0\0\0\0", 1, "sha256:encoder")


class _NotingClient:
    def __init__(self, address: str, asked: list[str]) -> None:
        self._address = address
        self._asked = asked

    async def score(
        self, cascade: str, images: Any, timeout_s: float, prompts: Any, digest: str
    ) -> dict[tuple[str, int], float]:
        self._ask(digest)
        return {key: 0.5 if prompts == {key: PROMPT} else math.nan for key, _ in images}

    async def foresee(
        self, cascade: str, prompt: Embedding, timeout_s: float, digest: str, threshold: float | None
    ) -> PromptForesight:
        self._ask(digest)
        if "plain" in self._address:
            raise FailedPrecondition(NO_PROMPT_HEAD, "reads images only")
        return PromptForesight(0.25)

    def _ask(self, digest: str) -> None:
        self._asked.append(self._address)
        if "other" in self._address and digest:
            raise FailedPrecondition("OTHER_DISCRIMINATOR", "another one")
        if "down" in self._address:
            raise Unavailable("DOWN", "nobody there", retry_after_ms=1)


def discriminators(asked: list[str], *configured: str) -> Discriminators:
    def open_client(address: str) -> Any:
        return _NotingClient(address, asked)

    # An address states the cascades that its name has after a colon.
    return Discriminators(open_client, configured, lambda at, cascade: at.partition(":")[2] in ("", cascade))


def endpoint(address: str, *cascades: str) -> ServiceEndpoint:
    return ServiceEndpoint(ReplicaKind.DISCRIMINATOR, address, address, cascades)


async def score(them: Discriminators, cascade: str) -> float | None:
    return await them.score(cascade, ("r", 1), b"picture", PROMPT, 1.0)


@pytest.mark.parametrize(
    ("configured", "followed", "asked", "found"),
    [
        ((), [endpoint("a", "x>y"), endpoint("b", "l>h"), endpoint("c", "l>h")], {"b": 2, "c": 2}, 0.5),
        ((), [endpoint("any"), endpoint("b", "x>y")], {"any": 4}, 0.5),
        (("own",), [], {"own": 4}, 0.5),
        (("own", "stated:x>y", "stated:l>h"), [], {"own": 2, "stated:l>h": 2}, 0.5),
        ((), [ServiceEndpoint(ReplicaKind.EMBEDDER, "e", "e")], {}, None),
        ((), [endpoint("down", "l>h"), endpoint("b", "l>h")], {"b": 4}, 0.5),
    ],
    ids=[
        "other cascades are not",
        "no cascade: any",
        "the operator's own: any",
        "stated ones: theirs",
        "other kinds are not",
        "one is down",
    ],
)
async def test_score_calls_discriminators_of_its_cascade(
    configured: tuple[str, ...], followed: list[ServiceEndpoint], asked: dict[str, int], found: float | None
) -> None:
    addresses: list[str] = []
    them = discriminators(addresses, *configured)
    if followed:
        them.follow(followed)

    assert [await score(them, "l>h") for _ in range(4)] == [found] * 4
    assert Counter(one for one in addresses if one != "down") == asked


async def test_score_of_discriminator_with_other_digest_is_rejected_and_counted() -> None:
    asked: list[str] = []
    them = discriminators(asked, "other")
    before = other_count()

    assert await them.score("l>h", ("r", 1), b"picture", PROMPT, 1.0, digest="sha256:meant") is None
    assert await them.foresee("l>h", PROMPT, 1.0, digest="sha256:meant") is None
    assert await score(them, "l>h") == 0.5, "any will do where none is meant"

    assert (len(asked), other_count() - before) == (3, 2)


def other_count() -> float:
    return REGISTRY.get_sample_value("pentimento_frontdoor_other_discriminator_total") or 0.0


async def test_foresee_calls_discriminators_of_its_cascade_until_one_answers() -> None:
    asked: list[str] = []
    them = discriminators(asked)
    them.follow([endpoint("down", "l>h"), endpoint("b", "l>h"), endpoint("c", "x>y")])

    assert [await them.foresee("l>h", PROMPT, 1.0) for _ in range(2)] == [PromptForesight(0.25)] * 2
    assert set(asked) == {"down", "b"}
    assert await them.foresee("a>b", PROMPT, 1.0) is None


async def test_discriminator_without_head_is_called_once_for_prompts() -> None:
    asked: list[str] = []
    them = discriminators(asked)
    them.follow([endpoint("plain", "l>h")])

    assert them.may_read_prompts("l>h")
    assert await them.foresee("l>h", PROMPT, 1.0) is None
    assert not them.may_read_prompts("l>h")
    assert them.may_read_prompts("a>b")

    them.follow([endpoint("b", "l>h")])
    assert them.may_read_prompts("l>h"), "another discriminator may read prompts"


async def test_planned_discriminators_are_called_first() -> None:
    asked: list[str] = []
    them = discriminators(asked)
    placed = ComponentPlacement(ReplicaKind.DISCRIMINATOR, "l>h", ("b", "down", "gone"))
    them.follow([endpoint("a", "l>h"), endpoint("b", "l>h"), endpoint("down", "l>h")], [placed])

    for _ in range(4):
        assert await score(them, "l>h") == 0.5

    assert asked.count("b") == 4
    assert "a" not in asked
    them.follow([endpoint("a", "l>h"), endpoint("down", "l>h")], [placed])
    assert await score(them, "l>h") == 0.5, "another one is asked where the placed one is away"


async def test_score_goes_to_least_busy_discriminator() -> None:
    asked: list[str] = []
    them = discriminators(asked, "a", "b")
    them._replicas.running["a"] = 1

    for _ in range(3):
        await score(them, "l>h")

    assert asked == ["b", "b", "b"]


def test_failure_kind_of_workers_error_decides_next_attempt() -> None:
    for error, kind in (
        (errors.Unavailable("UNAVAILABLE", ""), FailureKind.WORKER_LOST),
        (errors.Unavailable("DRAINING", ""), FailureKind.NO_CREDIT),
        (errors.Unavailable("WORKER_STOPPED", ""), FailureKind.NO_CREDIT),
        (errors.Unavailable("INPUT_UNAVAILABLE", ""), FailureKind.FATAL),
        (errors.Unavailable("CONTROLNET_LOST", ""), FailureKind.FATAL),
        (errors.ResourceExhausted("NO_CREDIT", ""), FailureKind.NO_CREDIT),
        (errors.ResourceExhausted("CONTROLNET_FULL", ""), FailureKind.NO_CREDIT),
        (errors.ResourceExhausted("DEVICE_OUT_OF_MEMORY", ""), FailureKind.WORKER_LOST),
        (errors.ResourceExhausted("MESSAGE_TOO_LARGE", ""), FailureKind.FATAL),
        (errors.FailedPrecondition("MODEL_DIGEST_MISMATCH", ""), FailureKind.NOT_HELD),
        (errors.FailedPrecondition("BAD_LORA", ""), FailureKind.FATAL),
        (errors.FailedPrecondition("LORA_MISMATCH", ""), FailureKind.FATAL),
        (errors.Aborted("FENCED_OFF", ""), FailureKind.NO_CREDIT),
        (errors.NotFound("ATTEMPT_GONE", ""), FailureKind.GONE),
        (errors.NotFound("UNKNOWN_LORA", ""), FailureKind.FATAL),
        (errors.DeadlineExceeded("DEADLINE_EXCEEDED", ""), FailureKind.DEADLINE),
        (errors.Cancelled("CANCELLED", ""), FailureKind.STOPPED),
        (errors.InvalidArgument("INVALID_FIELD", ""), FailureKind.FATAL),
        (errors.Internal("NAN_IN_LATENT", ""), FailureKind.FATAL),
    ):
        assert failure_kind(error) is kind, error.reason
