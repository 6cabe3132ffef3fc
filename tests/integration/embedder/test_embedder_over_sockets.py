"""Test embeddings over real sockets, invalid calls among valid ones, and starts that must fail."""

import asyncio
import io
import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lab.commands.trace_study import embed_prompts
from pentimento.clients.embedder import EmbedderClient
from pentimento.domain.embedding import Space
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, ResourceExhausted, Unavailable
from pentimento.rpc import RpcChannelSettings, RpcServerSettings, open_channel
from services.embedder.model import open_model
from services.embedder.settings import EmbedderSettings
from services.embedder.wiring import wire
from tests.support.encoders import write_sentence_encoder

ROOT = Path(__file__).parents[3]


def gradient_image() -> bytes:
    buffer = io.BytesIO()
    Image.linear_gradient("L").resize((40, 30)).convert("RGB").save(buffer, "WEBP", lossless=True)
    return buffer.getvalue()


async def test_embeddings_equal_the_model_s_own_vectors(client, encoder_directory):
    model = open_model(encoder_directory)

    texts = await client.embed_text(["a red circle", "a blue square"])
    (image,) = await client.embed_image([gradient_image()])

    expected = np.frombuffer(b"".join(model.embed_texts(["a red circle", "a blue square"])), "<f4")
    got = np.frombuffer(b"".join(embedding.values for embedding in texts), "<f4")
    np.testing.assert_allclose(got, expected, atol=1e-5)
    assert {embedding.encoder_digest for embedding in (*texts, image)} == {model.digest}
    assert abs(np.linalg.norm(np.frombuffer(image.values, "<f4")) - 1) < 1e-6


async def test_concurrent_calls_share_batches(client):
    texts = [f"{colour} circle number {number}" for colour in ("red", "blue") for number in range(20)]

    together = await asyncio.gather(*(client.embed_text([text]) for text in texts))

    one_by_one = [np.frombuffer((await client.embed_text([text]))[0].values, "<f4") for text in texts]
    for (embedding,), alone in zip(together, one_by_one, strict=True):
        np.testing.assert_allclose(np.frombuffer(embedding.values, "<f4"), alone, atol=1e-5)
    assert (await client.info()).mean_batch_size > 1


async def test_memo_is_kept_per_partition(client):
    await client.embed_text(["a red circle"], memo_partition="tenant-a")

    await client.embed_text(["a red circle"], memo_partition="tenant-b")

    assert (await client.info()).memo_hit_count == 0


async def test_info_names_the_encoder_and_counts_the_memo(client, encoder_directory):
    await client.embed_text(["a red circle"])
    await client.embed_text(["a red circle"])

    info = await client.info()

    assert info.encoder_name == encoder_directory.name
    assert (info.dimension_count, info.embeds_images) == (16, True)
    assert (info.memo_hit_count, info.memo_miss_count) == (1, 1)


async def test_bad_text_or_image_is_named_and_hurts_no_later_call(client):
    with pytest.raises(InvalidArgument) as bad_text:
        await client.embed_text(["fine", "x" * (16 * 1024 + 1)])
    with pytest.raises(InvalidArgument) as bad_image:
        await client.embed_image([gradient_image(), b"GIF89a"])

    assert [refusal.value.violations[0].field for refusal in (bad_text, bad_image)] == ["texts[1]", "images[1]"]
    assert await client.embed_text(["a red circle"])
    assert await client.embed_image([gradient_image()])


async def test_sentence_encoder_refuses_images_by_reason(tmp_path, address):
    encoder = write_sentence_encoder(tmp_path / "sentences")
    process = wire(EmbedderSettings(RpcServerSettings(listen=(address,)), RpcChannelSettings(), encoder))
    await process.server.start()
    await process.warm()
    process.server.set_serving()
    try:
        async with open_channel(address, RpcChannelSettings()) as channel:
            client = EmbedderClient(channel)
            with pytest.raises(FailedPrecondition) as refusal:
                await client.embed_image([gradient_image()])
            (embedding,) = await client.embed_text(["a red circle"])
            info = await client.info()
    finally:
        await process.drain()
        await process.server.stop()

    assert refusal.value.reason == "NO_IMAGE_TOWER"
    assert abs(np.linalg.norm(np.frombuffer(embedding.values, "<f4")) - 1) < 1e-6
    assert (info.encoder_name, info.dimension_count, info.embeds_images) == ("sentences", 32, False)
    assert info.encoder_digest == embedding.encoder_digest == open_model(encoder).digest


async def test_sentence_encoder_is_refused_for_images_before_it_serves(tmp_path, address):
    encoder = write_sentence_encoder(tmp_path / "sentences")
    rpc, channels = RpcServerSettings(listen=(address,)), RpcChannelSettings()
    process = wire(EmbedderSettings(rpc, channels, encoder, space=Space.IMAGE))

    with pytest.raises(InvalidArgument, match=r"encoder: must embed images.* --space image; .*sentences embeds texts"):
        await process.prepare()


async def test_study_embeds_each_prompt_once_in_order(client, address, encoder_directory):
    prompts = ["a red circle", "a blue square", "a red circle"] * 30 + [f"number {number}" for number in range(20)]

    vectors, digest = await embed_prompts(address, None, prompts, batch=8)

    model = open_model(encoder_directory)
    expected = [np.frombuffer(model.embed_texts([prompt])[0], "<f4") for prompt in prompts]
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    assert digest == model.digest
    assert (await client.info()).memo_miss_count == 22


async def test_message_beyond_the_limit_is_refused(client):
    with pytest.raises(ResourceExhausted):
        await client.embed_text(["x" * (33 * 1024 * 1024)])

    assert await client.embed_text(["a red circle"])


async def test_a_call_before_the_encoder_is_loaded_is_unavailable(process, cold_client):
    with pytest.raises(Unavailable):
        await cold_client.embed_text(["a red circle"])

    await process.warm()

    assert await cold_client.embed_text(["a red circle"])


async def test_unregistered_encoder_is_refused(process, encoder_directory):
    entry = {"path": encoder_directory.name, "digest": "sha256:other"}
    registry = encoder_directory.parent / "registry.json"
    registry.write_text(json.dumps({"models": [entry]}))

    try:
        with pytest.raises(FailedPrecondition, match="expected sha256:other") as refused:
            await process.warm()
    finally:
        registry.unlink()

    assert refused.value.reason == "MODEL_DIGEST_MISMATCH"


@pytest.mark.parametrize(("digest", "serves"), [("sha256:other", False), ("any", True)])
async def test_expected_or_any_encoder_is_served(encoder_directory, address, digest, serves):
    settings = EmbedderSettings(
        RpcServerSettings(listen=(address,)),
        RpcChannelSettings(),
        encoder_directory,
        expected_digest=digest,
    )
    process = wire(settings)

    with nullcontext() if serves else pytest.raises(FailedPrecondition, match="expected sha256:other"):
        await process.warm()
    await process.drain()


IMPORT = "import time:"  # begins what -X importtime tells


def start(*arguments: str, options: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, *options, "-m", "services.embedder", "--log-level", "error", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, timeout=120)


def test_start_with_corrupt_weights_ends_in_one_line(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "clip"}')
    (tmp_path / "model.safetensors").write_bytes(b"\x80\x04\x95 a renamed pickle")

    outcome = start("--encoder", str(tmp_path), options=("-X", "importtime"))

    told = [line for line in outcome.stderr.decode().splitlines() if not line.startswith(IMPORT)]
    imported = {line.rpartition("|")[2].strip() for line in outcome.stderr.decode().splitlines()} - set(told)
    assert (outcome.returncode, len(told)) == (1, 1)
    assert "model.safetensors: not a safetensors file" in told[0]
    assert imported & {"torch", "transformers", "diffusers"} == {"torch"}


def test_a_missing_directory_is_a_wrong_setting():
    outcome = start("--encoder", "/nowhere")

    assert outcome.returncode == 2
    assert outcome.stderr.startswith(b"embedder: --encoder: no such file or directory: /nowhere")
