"""Quality kept online by real processes: a hit is painted again, and what it kept is told."""

import asyncio
from dataclasses import replace

from pentimento.domain.generation import FromLatent
from pentimento.domain.image_request import CacheMode, ImageRequest
from pentimento.domain.online_quality import ReuseQuality
from pentimento.sdk import AsyncClient, GeneratedImage
from pentimento.supervisor.local import LocalSuite


def asking(prompt: str, seed: int) -> ImageRequest:
    return ImageRequest(prompt, model="tiny-light", seed=seed, num_inference_steps=10)


async def paint_hit(client: AsyncClient) -> GeneratedImage:
    """An entry is committed once its picture was answered, so the first looks may be too early; they leave nothing, so
    that the donor is the other prompt's."""
    await client.generate(asking("a small blue star on black", 1))
    async with asyncio.timeout(120):
        while True:
            picture = await client.generate(replace(asking("a large red circle on white", 2), cache=CacheMode.READ))
            if isinstance(picture.provenance.route.start, FromLatent):
                return picture


async def watched_row(client: AsyncClient) -> ReuseQuality:
    """The row of the table by which the hit started, once a hit by it was painted again."""
    async with asyncio.timeout(120):
        while True:
            told = (await client.explain(asking("a large red circle on white", 3))).reuse_quality
            # Those of images are the shipped profile's. A busy gateway tells nothing.
            for row in told:
                if not row.from_image and row.achieved is not None:
                    return row
            await asyncio.sleep(0.5)


async def test_a_hit_is_painted_again_and_explain_tells_what_it_kept(suite_of_two: LocalSuite) -> None:
    async with AsyncClient(suite_of_two.endpoint.public) as client:
        hit = await paint_hit(client)
        row = await watched_row(client)

    assert hit.provenance.steps_saved == 3
    assert (row.from_image, row.saved_share, row.profiled_similarity, row.similarity) == (False, 0.4, -1.0, -1.0)
    assert row.achieved is not None
    assert row.achieved.sample_count >= 1
    assert row.achieved.alpha_low <= row.achieved.alpha <= row.achieved.alpha_high
    assert 0 <= row.achieved.kept_share_low <= row.achieved.kept_share <= row.achieved.kept_share_high <= 1
    # It is another picture than the one from noise.
    assert row.achieved.alpha != 1
