"""Test the entries near a prompt as shown to users: near enough or not, and only from the caller's pools."""

from dataclasses import replace

import pytest

from pentimento.domain.cache import CacheScope, LookupCandidate, Neighbour
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import InvalidArgument
from tests.support.gateways import RunningGateway, at_similarity, embedding, new_tenant, scope


async def nearest(
    gateway: RunningGateway, text: Embedding, of: CacheScope | None = None, limit_count: int = 10
) -> tuple[Neighbour, ...]:
    return await gateway.client.neighbours(LookupCandidate(of or scope()), text, limit_count)


async def test_neighbours_are_ordered_by_prompt_then_by_image(imaging: RunningGateway) -> None:
    before = (await imaging.client.statistics()).lookup_count
    far = await imaging.store(at_similarity(0.1), steps=(5, 10), image=embedding(1))
    near = await imaging.store(embedding(1), ancestor_depth=2)

    found = await nearest(imaging, embedding(1))

    assert [(one.entry_id, one.by_image) for one in found] == [(near, False), (far, False), (far, True)]
    assert [one.similarity for one in found] == pytest.approx([1.0, 0.1, 1.0], abs=1e-5)
    assert [one.ancestor_depth for one in found] == [2, 0, 0]
    assert (found[1].resume_steps, found[2].resume_steps) == ((5, 10), ())
    assert all(one.request_id.startswith("request-") for one in found)
    assert len(await nearest(imaging, embedding(1), limit_count=1)) == 2
    # A neighbour query does not count as a lookup.
    assert (await imaging.client.statistics()).lookup_count == before


async def test_neighbours_leave_out_other_tenants(imaging: RunningGateway) -> None:
    mine = scope(model_digest=f"sha256:{new_tenant()}")
    others = replace(mine, tenant=new_tenant())
    await imaging.store(embedding(1), others)
    shared = await imaging.store(embedding(1), replace(others, shared_pool=True))

    assert await nearest(imaging, embedding(1), mine) == ()
    (found,) = await nearest(imaging, embedding(1), replace(mine, shared_pool=True))
    assert (found.entry_id, found.request_id) == (shared, "")


async def test_neighbours_of_an_empty_cache_are_none(gateway: RunningGateway) -> None:
    assert await nearest(gateway, embedding(1)) == ()
    for limit_count in (0, 51):
        with pytest.raises(InvalidArgument, match="limit_count: must be between 1 and 50"):
            await nearest(gateway, embedding(1), limit_count=limit_count)
