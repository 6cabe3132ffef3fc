"""Limits, memo and batches together, over a real encoder."""

import asyncio
import io
import threading
from collections.abc import AsyncIterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import InvalidArgument, Unavailable
from pentimento.service.batching import BatchingLimits
from services.embedder import embedder as embedder_module
from services.embedder.embedder import Embedder
from services.embedder.model import EmbeddingModel

BATCHES = BatchingLimits(max_batch_size=4)


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"MAX_TEXTS": 8, "MAX_TEXT_BYTES": 100, "MAX_IMAGES": 3, "MAX_IMAGE_BYTES": 5000}
    for name, limit in limits.items():
        monkeypatch.setattr(embedder_module, name, limit)


def new_embedder(memo_entries: int = 100) -> Embedder:
    return Embedder(BATCHES, memo_entries)


@pytest.fixture
async def embedder(model: EmbeddingModel) -> AsyncIterator[Embedder]:
    made = new_embedder()
    made.start(model)
    yield made
    await made.close()


def vector(embedding: Embedding) -> np.ndarray:
    return np.frombuffer(embedding.values, "<f4")


def random_image(seed: int = 0) -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (30, 40, 3), np.uint8)
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


async def test_vectors_are_of_unit_length_and_name_their_encoder(embedder, model):
    (text,) = await embedder.embed_texts(["a red circle"])
    (image,) = await embedder.embed_images([random_image()])

    for embedding in (text, image):
        assert embedding.dimension_count == 16
        assert embedding.encoder_digest == model.digest
        assert abs(np.linalg.norm(vector(embedding)) - 1) < 1e-6


# nine of the longest words stay within the limit of 100 bytes
words = st.lists(st.sampled_from(["red", "circle", "on", "a", "blue-green", "ground", "12"]), max_size=9)


@pytest.mark.slow
@given(st.lists(st.lists(words.map(" ".join), min_size=1, max_size=8), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_texts_of_any_batches_get_their_own_vectors(model, calls):
    async def embed_all() -> list[tuple[Embedding, ...]]:
        embedder = new_embedder(memo_entries=0)
        embedder.start(model)
        answers = await asyncio.gather(*(embedder.embed_texts(call) for call in calls))
        await embedder.close()
        return answers

    answers = asyncio.run(embed_all())

    for call, answer in zip(calls, answers, strict=True):
        for text, embedding in zip(call, answer, strict=True):
            alone = np.frombuffer(model.embed_texts([text])[0], "<f4")
            np.testing.assert_allclose(vector(embedding), alone, rtol=0, atol=1e-5)


async def test_repeated_text_or_image_comes_from_the_memo(embedder):
    (first,), (image,) = await embedder.embed_texts(["a red circle"]), await embedder.embed_images([random_image(1)])

    again = await embedder.embed_texts(["a blue square", "a red circle", "a blue square"])

    assert again[1] == first
    assert again[0] == again[2]
    assert await embedder.embed_images([random_image(1)]) == (image,)
    memo = embedder.ready().memo
    assert (memo.hit_count, memo.miss_count) == (2, 3)


async def test_a_text_beyond_the_context_is_cut(embedder):
    long = "red circle on a ground " * 4

    whole, longer = await embedder.embed_texts([long.strip(), long + "blue"])

    np.testing.assert_allclose(vector(whole), vector(longer), atol=1e-5)


WRONG_TEXTS = [
    ([], r"texts: must be 1 to 8, got 0"),
    (["x"] * 9, r"texts: must be 1 to 8, got 9"),
    (["fine", "x" * 101], r"texts\[1\]: must be at most 100 bytes, got 101"),
    (["é" * 51], r"texts\[0\]: must be at most 100 bytes, got 102"),
    (["a\0b"], r"texts\[0\]: must not hold a NUL"),
]


async def test_text_outside_the_limits_is_refused_by_name(embedder):
    for texts, message in WRONG_TEXTS:
        with pytest.raises(InvalidArgument, match=message):
            await embedder.embed_texts(texts)

        assert len(await embedder.embed_texts(["a red circle"])) == 1


WRONG_IMAGES = [
    ([], r"images: must be 1 to 3, got 0"),
    ([random_image()] * 4, r"images: must be 1 to 3, got 4"),
    ([random_image(), b""], r"images\[1\]: must not be empty"),
    ([b"x" * 5001], r"images\[0\]: must be at most 5000 bytes, got 5001"),
    ([random_image(), b"no image"], r"images\[1\]: must be a PNG, JPEG or WebP image"),
]


async def test_image_outside_the_limits_is_refused_by_name(embedder):
    for images, message in WRONG_IMAGES:
        with pytest.raises(InvalidArgument, match=message):
            await embedder.embed_images(images)

        assert len(await embedder.embed_images([random_image()])) == 1


@given(st.text(max_size=120))
@settings(max_examples=60, deadline=None)
def test_any_text_is_embedded_or_refused(model, text):
    async def embed() -> int:
        embedder = new_embedder()
        embedder.start(model)
        try:
            return len(await embedder.embed_texts([text]))
        finally:
            await embedder.close()

    try:
        assert asyncio.run(embed()) == 1
    except InvalidArgument as refusal:
        assert refusal.violations[0].field == "texts[0]"


async def test_closed_embedder_refuses_texts_and_images(model):
    embedder = new_embedder()
    embedder.start(model)
    await embedder.close()

    for call in (embedder.embed_texts(["a red circle"]), embedder.embed_images([random_image()])):
        with pytest.raises(Unavailable) as refused:
            await call
        assert refused.value.reason == "DRAINING"


async def test_close_embeds_images_that_are_being_decoded(embedder):
    goes_on = threading.Event()
    embedder._decoding.submit(goes_on.wait, 60)
    taken = asyncio.create_task(embedder.embed_images([random_image()]))
    await asyncio.sleep(0)
    closing = asyncio.create_task(embedder.close())
    await asyncio.sleep(0)
    goes_on.set()

    (embedding,) = await taken
    await closing

    assert embedding.dimension_count == 16
