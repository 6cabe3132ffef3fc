"""Choose the compared pairs that stay in the object store."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from lab.fixtures.clocks import SetClock
from pentimento.api.discriminator.v1 import discriminator_service_pb2 as pb
from pentimento.domain.embedding import Embedding
from pentimento.domain.online_quality import ComparedPair
from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.objects.pair_keys import reference_of
from pentimento.stores.objects.store import is_key, refer_to
from pentimento.wire.codec import from_bytes
from services.frontdoor.quality import comparison as kept_pairs
from services.frontdoor.quality.comparison import KeptPairs, Scores

SCORES = Scores(Embedding(b"\0" * 8, 2, "sha256:e"), 0.3, 0.4)
DIGESTS = "sha256:light", "sha256:heavy"


class HeldObjects:
    """Objects in memory. `away`: none is taken."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.away = False

    async def offer(self, key: str, data: bytes) -> None:
        if self.away:
            raise StoreUnavailable("object store", "away")
        self.objects[key] = data

    async def keys(self, prefix: str) -> AsyncIterator[list[str]]:
        yield [key for key in self.objects if key.startswith(prefix)]

    async def delete(self, key: str) -> None:
        del self.objects[key]

    @property
    def pairs(self) -> list[ComparedPair]:
        """Return the pairs, oldest first."""
        return [from_bytes(self.objects[key], ComparedPair, pb.ComparedPair) for key in sorted(self.objects)]


def keeping(limit: int) -> tuple[HeldObjects, SetClock, KeptPairs]:
    held, clock = HeldObjects(), SetClock()
    keeper: Any = held
    return held, clock, KeptPairs(keeper, clock, limit)


async def keep(pairs: KeptPairs, image: bytes = b"light", tenant: str = "one", *, deferred: bool = True) -> None:
    await pairs.keep(tenant, SCORES.pair("light>heavy", DIGESTS, 0.2, (image, b"heavy"), deferred=deferred))


async def test_keep_beyond_limit_deletes_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_pairs, "_LISTED_AFTER", 2)
    held, clock, pairs = keeping(2)
    for number in range(5):
        clock.wall_s += 1.0
        await keep(pairs, f"light {number}".encode())

    assert [pair.light for pair in held.pairs] == [b"light 3", b"light 4"]
    for key, data in held.objects.items():
        assert is_key(key)
        assert reference_of(key) == refer_to(key, data)


async def test_sampled_share_counts_each_verdict_apart() -> None:
    held, _, pairs = keeping(10)
    for deferred in (True, True, True, True, False, False):
        pairs.note("light>heavy", deferred=deferred)

    await keep(pairs)
    await keep(pairs, b"another", deferred=False)

    assert {pair.deferred: pair.sampled_share for pair in held.pairs} == {True: 0.25, False: 0.5}


async def test_of_tenant_names_its_pairs_and_ends_their_keeping() -> None:
    held, _, pairs = keeping(10)
    await keep(pairs, b"a", tenant="one")
    await keep(pairs, b"b", tenant="two")
    stored = {key: refer_to(key, data) for key, data in held.objects.items()}

    found = await pairs.of_tenant("one")
    await keep(pairs, b"c", tenant="one")

    assert [from_bytes(held.objects[one.key], ComparedPair, pb.ComparedPair).light for one in found] == [b"a"]
    assert found == [stored[one.key] for one in found]
    assert {pair.light for pair in held.pairs} == {b"a", b"b"}


@pytest.mark.parametrize("limit", [0, 5])
async def test_keep_without_room_stores_nothing(limit: int) -> None:
    held, _, pairs = keeping(limit)
    held.away = bool(limit)

    await keep(pairs)

    assert not held.objects
