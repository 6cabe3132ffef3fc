"""Search a vector index from a test that has no event loop."""

import asyncio

from pentimento.stores.vectors import VectorIndex, VectorMatch, VectorQuery

# Only a hang takes longer.
_HANGS_S = 120.0


def search_now(index: VectorIndex, query: VectorQuery) -> list[VectorMatch]:
    """Return the result of a search in a new event loop."""

    async def search() -> list[VectorMatch]:
        async with asyncio.timeout(_HANGS_S):
            return await index.search(query, _HANGS_S)

    return asyncio.run(search())
