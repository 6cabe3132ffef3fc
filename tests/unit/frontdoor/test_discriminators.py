"""Which discriminator is asked."""

from typing import Any

from pentimento.domain.errors import Unavailable
from pentimento.domain.fleet import ReplicaKind, ServiceEndpoint
from services.frontdoor.routing.discriminators import Discriminators


class _NotingClient:
    def __init__(self, address: str, asked: list[str]) -> None:
        self._address = address
        self._asked = asked

    async def score(self, cascade: str, images: Any, timeout_s: float) -> dict[tuple[str, int], float]:
        self._asked.append(self._address)
        if "down" in self._address:
            raise Unavailable("DOWN", "nobody there", retry_after_ms=1)
        return {key: 0.5 for key, _ in images}


def discriminators(asked: list[str], *configured: str) -> Discriminators:
    return Discriminators(lambda address: _NotingClient(address, asked), configured)  # type: ignore[arg-type,return-value]


def endpoint(address: str, *cascades: str) -> ServiceEndpoint:
    return ServiceEndpoint(ReplicaKind.DISCRIMINATOR, address, address, cascades)


async def score(them: Discriminators, cascade: str) -> float | None:
    return await them.score(cascade, "r", 1, b"picture", 1.0)


async def test_those_of_other_cascades_are_not_asked() -> None:
    asked: list[str] = []
    them = discriminators(asked)
    them.follow([endpoint("a", "x>y"), endpoint("b", "l>h"), endpoint("c", "l>h")])

    for _ in range(4):
        assert await score(them, "l>h") == 0.5

    assert sorted(asked) == ["b", "b", "c", "c"]


async def test_one_that_names_no_cascade_is_asked_of_any() -> None:
    asked: list[str] = []
    them = discriminators(asked)
    them.follow([endpoint("any"), endpoint("b", "x>y")])

    await score(them, "l>h")

    assert asked == ["any"]


async def test_those_of_the_operators_are_asked_of_any_cascade() -> None:
    asked: list[str] = []

    await score(discriminators(asked, "own"), "l>h")

    assert asked == ["own"]


async def test_services_of_other_kinds_are_not_asked() -> None:
    asked: list[str] = []
    them = discriminators(asked)
    them.follow([ServiceEndpoint(ReplicaKind.EMBEDDER, "e", "e")])

    assert await score(them, "l>h") is None
    assert asked == []


async def test_one_that_is_down_is_passed_over() -> None:
    asked: list[str] = []
    them = discriminators(asked)
    them.follow([endpoint("down", "l>h"), endpoint("b", "l>h")])

    assert [await score(them, "l>h") for _ in range(2)] == [0.5, 0.5]
