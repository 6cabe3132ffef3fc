"""Run a suite that finds latents by a sentence encoder and images by the zoo's CLIP."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pentimento.clients.embedder import EmbedderClient
from pentimento.domain.embedding import Embedding
from pentimento.domain.generation import FromImage, FromLatent, FromNoise, Start
from pentimento.domain.image_request import CacheMode, ImageRequest
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.sdk import AsyncClient, GeneratedImage
from pentimento.supervisor.local import LocalSuite, local_suite
from pentimento.supervisor.suite import IMAGE_EMBEDDER, unix_address
from tests.support.encoders import write_sentence_encoder

# Any two prompts are similar enough: the spaces decide which one is nearest.
SETTINGS = """
[vectordb_gateway]
thresholds = ["latent:-1:0.4", "image:-1:0.3"]
"""
SENTENCES = "sentences"
STORED, ASKED = "a red circle on the blue square", "a blue circle above the red square"


@pytest.fixture(scope="module")
def suite(patient_frontdoors: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSuite]:
    folder = tmp_path_factory.mktemp("encoders")
    (folder / SENTENCES).mkdir()
    encoder, config = write_sentence_encoder(folder / SENTENCES), folder / "settings.toml"
    config.write_text(SETTINGS)
    models = ["--model", "tiny-heavy", "--model", "tiny-light"]
    encoders = ["--encoder", str(encoder), "--image-encoder", "tiny-clip"]
    with local_suite([*models, *encoders, "--config", str(config)]) as running:
        yield running


async def generate_until(client: AsyncClient, wanted: ImageRequest, kind: type[Start]) -> GeneratedImage:
    """Repeat the request until it hits: an entry is committed after its image was answered."""
    async with asyncio.timeout(120):
        while True:
            made = await client.generate(wanted)
            if isinstance(made.provenance.route.start, kind):
                return made


async def embed(suite: LocalSuite, name: str, ask: Callable[[EmbedderClient], Awaitable[tuple[Embedding, ...]]]) -> Any:
    async with open_channel(unix_address(suite.state, name), RpcChannelSettings()) as channel:
        return [np.frombuffer(one.values, "<f4") for one in await ask(EmbedderClient(channel))]


async def test_latent_is_found_by_text_encoder_and_image_by_image_encoder(suite: LocalSuite) -> None:
    size = {"width_px": 48, "height_px": 48, "num_inference_steps": 10}
    stored = ImageRequest(STORED, model="tiny-heavy", seed=1, cache=CacheMode.READ_WRITE, **size)
    asked = ImageRequest(ASKED, model="tiny-heavy", seed=2, cache=CacheMode.READ, **size)
    async with AsyncClient(suite.endpoint.public) as client:
        miss = await client.generate(stored)
        latent = await generate_until(client, asked, FromLatent)
        image = await generate_until(client, replace(asked, model="tiny-light"), FromImage)
    sentences = await embed(suite, "embedder", lambda embedder: embedder.embed_text([STORED, ASKED]))
    (prompt,) = await embed(suite, IMAGE_EMBEDDER, lambda embedder: embedder.embed_text([ASKED]))
    (look,) = await embed(suite, IMAGE_EMBEDDER, lambda embedder: embedder.embed_image([miss.data]))

    assert isinstance(miss.provenance.route.start, FromNoise)
    assert isinstance(latent.provenance.route.start, FromLatent)
    assert isinstance(image.provenance.route.start, FromImage)
    assert len(sentences[0]) != len(prompt)
    by_text, by_image = latent.provenance.route.start.donor, image.provenance.route.start.donor
    assert by_text.similarity == pytest.approx(float(sentences[0] @ sentences[1]), abs=1e-4)
    assert by_image.similarity == pytest.approx(float(prompt @ look), abs=1e-4)
    assert (by_text.request_id, by_image.request_id) == (miss.provenance.request_id,) * 2


def test_status_names_both_encoders(suite: LocalSuite) -> None:
    command = [sys.executable, "-m", "pentimento.cli", "status", "--state-dir", str(suite.state.path)]

    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=150).stdout

    rows = {line.split()[0]: line for line in said.splitlines() if line.strip()}
    assert SENTENCES in rows["embedder"]
    assert "image_embedder" in rows[IMAGE_EMBEDDER] and "tiny-clip" in rows[IMAGE_EMBEDDER]


def test_sentence_encoder_is_refused_for_images(tmp_path: Path) -> None:
    encoder = write_sentence_encoder(tmp_path)
    command = [sys.executable, "-m", "pentimento.cli", "up", "--image-encoder", str(encoder)]

    done = subprocess.run(
        [*command, "--state-dir", str(tmp_path / "state")], capture_output=True, text=True, timeout=150
    )

    assert done.returncode != 0
    assert "image_encoder: must embed images, as CLIP and SigLIP do" in done.stderr
