"""Test online quality with real processes: a hit is generated again, and its kept quality is reported."""

import asyncio
from dataclasses import replace

from pentimento.domain.generation import FromLatent
from pentimento.domain.image_request import CacheMode, ImageRequest
from pentimento.domain.online_quality import ReuseQuality
from pentimento.sdk import AsyncClient, GeneratedImage
from pentimento.supervisor.local import LocalSuite


def asking(prompt: str, seed: int) -> ImageRequest:
    return ImageRequest(prompt, model="tiny-light", seed=seed, num_inference_steps=10)


async def generate_hit(client: AsyncClient) -> GeneratedImage:
    """Generate a hit from another prompt's entry. An entry is committed after its image was answered, so early requests
    may miss; they only read, and leave no entry themselves."""
    await client.generate(asking("a small blue star on black", 1))
    async with asyncio.timeout(120):
        while True:
            image = await client.generate(replace(asking("a large red circle on white", 2), cache=CacheMode.READ))
            if isinstance(image.provenance.route.start, FromLatent):
                return image


async def watched_row(client: AsyncClient) -> ReuseQuality:
    """Return the row that permitted the hit, once such a hit was generated again."""
    async with asyncio.timeout(120):
        while True:
            rows = (await client.explain(asking("a large red circle on white", 3))).reuse_quality
            # Rows of images come from the shipped profile. A busy gateway reports no rows.
            for row in rows:
                if not row.from_image and row.achieved is not None:
                    return row
            await asyncio.sleep(0.5)


async def test_hit_is_generated_again_and_explain_reports_kept_quality(suite_of_two: LocalSuite) -> None:
    async with AsyncClient(suite_of_two.endpoint.public) as client:
        hit = await generate_hit(client)
        row = await watched_row(client)

    assert hit.provenance.steps_saved == 3
    assert (row.from_image, row.saved_share, row.profiled_similarity, row.similarity) == (False, 0.4, -1.0, -1.0)
    assert row.achieved is not None
    assert row.achieved.sample_count >= 1
    assert row.achieved.alpha_low <= row.achieved.alpha <= row.achieved.alpha_high
    assert 0 <= row.achieved.kept_share_low <= row.achieved.kept_share <= row.achieved.kept_share_high <= 1
    # The new image differs from the image from noise.
    assert row.achieved.alpha != 1
