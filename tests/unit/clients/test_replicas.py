"""Choose the replica of a service for a call, and bound the cost of its failure."""

import pytest

from pentimento.clients.replicas import ServiceReplicas
from pentimento.domain.errors import InvalidArgument, PentimentoError, Unavailable


def replicas(*addresses: str) -> ServiceReplicas[str]:
    """Return replicas; the client of an address is its name."""
    made = ServiceReplicas[str](lambda address: address)
    made.follow(addresses)
    return made


def is_away(_: str, error: PentimentoError) -> bool:
    return isinstance(error, Unavailable)


def test_least_busy_replica_is_first_and_equal_ones_follow_by_rank() -> None:
    them = replicas("a", "b", "c")
    them.running["a"] = 1

    assert them.least_busy(("a", "b", "c"), {"a": 0, "b": 2, "c": 1}.__getitem__) == ["c", "b", "a"]


async def test_failed_replica_is_skipped_and_last_error_is_raised() -> None:
    them = replicas("a", "b")
    called: list[str] = []

    async def call(client: str) -> str:
        called.append(client)
        assert them.running == {client: 1}
        raise Unavailable(client.upper(), "gone")

    with pytest.raises(Unavailable) as failed:
        await them.ask(["b", "a"], call, is_away)

    assert (called, failed.value.reason, dict(them.running)) == (["b", "a"], "A", {})


async def test_error_that_is_not_skipped_reaches_no_second_replica() -> None:
    called: list[str] = []

    async def call(client: str) -> str:
        called.append(client)
        raise InvalidArgument.of("texts", "must be shorter")

    with pytest.raises(InvalidArgument):
        await replicas("a", "b").ask(["a", "b"], call, is_away)
    with pytest.raises(Unavailable, match="the service has no replica"):
        await replicas().ask([], call, is_away)

    assert called == ["a"]


def test_follow_keeps_clients_and_says_whether_addresses_changed() -> None:
    opened: list[str] = []

    def open_client(address: str) -> str:
        opened.append(address)
        return address

    them = ServiceReplicas[str](open_client)

    assert [them.follow(("a", "b", "a")), them.follow(("b", "a")), them.follow(("b",))] == [True, False, True]
    assert opened == ["a", "b"]
