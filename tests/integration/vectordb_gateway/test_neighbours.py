"""The entries near a prompt, as people see them: near enough or not, and nobody's but the asker's."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from pentimento.domain.cache import CacheScope, LookupCandidate, Neighbour
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import InvalidArgument
from tests.support.gateways import RunningGateway, at_similarity, embedding, running_gateway, scope


@pytest_asyncio.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    """One that keeps images too."""
    async with running_gateway(tmp_path, "--image-thresholds", "0.3:0.4") as running:
        yield running


async def nearest(
    gateway: RunningGateway, text: Embedding, of: CacheScope | None = None, limit_count: int = 10
) -> tuple[Neighbour, ...]:
    return await gateway.client.neighbours(LookupCandidate(of or scope()), text, limit_count)


async def test_entries_are_told_near_enough_or_not_the_nearest_first_and_by_their_pictures_last(
    gateway: RunningGateway,
) -> None:
    far = await gateway.store(at_similarity(0.1), steps=(5, 10), image=embedding(1))
    near = await gateway.store(embedding(1), ancestor_depth=2)

    found = await nearest(gateway, embedding(1))

    assert [(one.entry_id, one.by_picture) for one in found] == [(near, False), (far, False), (far, True)]
    assert [one.similarity for one in found] == pytest.approx([1.0, 0.1, 1.0], abs=1e-5)
    assert [one.ancestor_depth for one in found] == [2, 0, 0]
    assert (found[1].resume_steps, found[2].resume_steps) == ((5, 10), ())
    assert all(one.request_id.startswith("request-") for one in found)
    assert len(await nearest(gateway, embedding(1), limit_count=1)) == 2
    # Looking around is no lookup.
    assert (await gateway.client.statistics()).lookup_count == 0


async def test_another_tenant_s_entry_is_not_told_and_a_shared_one_without_its_request(
    gateway: RunningGateway,
) -> None:
    await gateway.store(embedding(1), replace(scope(), tenant="globex"))
    shared = await gateway.store(embedding(1), replace(scope(), tenant="globex", shared_pool=True))

    assert await nearest(gateway, embedding(1)) == ()
    (found,) = await nearest(gateway, embedding(1), replace(scope(), shared_pool=True))
    assert (found.entry_id, found.request_id) == (shared, "")


async def test_an_empty_cache_has_none_and_a_wrong_number_is_refused_by_name(gateway: RunningGateway) -> None:
    assert await nearest(gateway, embedding(1)) == ()
    for limit_count in (0, 51):
        with pytest.raises(InvalidArgument, match="limit_count: must be between 1 and 50"):
            await nearest(gateway, embedding(1), limit_count=limit_count)
