"""Serve a model without a reuse profile: misses have trials, and every view shows their rows."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from pentimento.clients.frontdoor import FrontdoorClient
from pentimento.domain.generation import FromNoise
from pentimento.domain.image_request import ImageRequest
from pentimento.domain.online_quality import ReuseQuality
from pentimento.profiles.document import profiles_to_json
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.sdk import AsyncClient
from pentimento.supervisor.local import local_suite
from tests.support.profiles import LATENT_PROFILE

# CI starts a separate suite for these tests.
pytestmark = pytest.mark.faults
ASKED = ImageRequest("a large red circle on white", model="tiny-light", seed=1)
ALL_TRIALS = """
[frontdoor]
quality_work_share = 1.0
"""


async def tried_row(client: AsyncClient) -> ReuseQuality:
    """Return the first row with a trial. Requests repeat, because lookups find an entry some time after its image."""
    async with asyncio.timeout(120):
        for seed in range(2, 1000):
            image = await client.generate(replace(ASKED, seed=seed))
            assert isinstance(image.provenance.route.start, FromNoise)
            await asyncio.sleep(0.5)
            rows = (await client.explain(ASKED)).reuse_quality
            for row in rows:
                if row.trial_count:
                    return row
    raise AssertionError("no trial was counted")


async def test_misses_of_an_unprofiled_model_have_trials(tmp_path: Path) -> None:
    config, profiles = tmp_path / "settings.toml", tmp_path / "profiles.json"
    config.write_text(ALL_TRIALS)
    # A reuse profile of another model takes the place of the shipped ones.
    profiles.write_text(profiles_to_json(LATENT_PROFILE))
    flags = ["--model", "tiny-light", "--profiles", str(profiles), "--config", str(config)]
    with local_suite(flags) as suite:
        async with AsyncClient(suite.endpoint.public) as client:
            await client.generate(ASKED)
            row = await tried_row(client)
            told = (await client.explain(ASKED)).reasons
        async with open_channel(suite.endpoint.public, RpcChannelSettings()) as channel:
            status = await FrontdoorClient(channel).status()

    # Most steps first; one trial opens nothing.
    assert (row.saved_share, row.similarity, row.earned, row.from_image) == (0.5, 1.0, True, False)
    assert any(reason.startswith("reuse of latents: earned by trials, 0 of 5 thresholds") for reason in told)
    assert any(reason.startswith("reuse of images: earned by trials, 0 of 6 thresholds") for reason in told)
    assert status.shadow_device_s > 0.0
