"""Texts and images to embeddings: limits, memo, then the model thread."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from pentimento.diffusion.preprocessing import ImagePreprocessing, to_pixels
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import InvalidArgument, Unavailable
from pentimento.domain.reasons import Reason
from pentimento.pictures.decoding import decode
from services.embedder.batching import Compute, EmbeddingBatchLimits, ModelThread
from services.embedder.memo import EmbeddingMemo
from services.embedder.metrics import MEMO_HITS, MEMO_MISSES
from services.embedder.model import EmbeddingModel

TEXT, IMAGE = "text", "image"
# From indices of a call's texts or images to what the model thread takes.
Prepare = Callable[[Sequence[int]], Awaitable[Sequence[Any]]]


@dataclass(frozen=True)
class CallLimits:
    """Of one call; checked before anything is computed."""

    max_texts: int = 64
    max_text_bytes: int = 16 * 1024
    max_images: int = 16
    max_image_bytes: int = 8 * 1024 * 1024


@dataclass(frozen=True)
class EmbedderInfo:
    """`mean_batch_size` counts memo hits as nothing: it is what the model really ran."""

    encoder_name: str
    encoder_digest: str
    dimension_count: int
    memo_hit_count: int
    memo_miss_count: int
    mean_batch_size: float
    embeds_images: bool


class Embedder:
    """Belongs to one event loop, which it never blocks. `start` gives it its model; until then it is Unavailable."""

    def __init__(self, limits: CallLimits, batch_limits: EmbeddingBatchLimits, memo_entries: int) -> None:
        self._limits = limits
        self._batch_limits = batch_limits
        self._memo_entries = memo_entries
        self._ready: _Ready | None = None
        # Calls that are not answered yet.
        self._taken_count = 0
        self._all_answered = asyncio.Event()
        self._all_answered.set()
        self._closed = False
        # One thread: images are decoded one at a time.
        self._decoding = ThreadPoolExecutor(1, thread_name_prefix="decode")

    def start(self, model: EmbeddingModel) -> None:
        """Changes state: from now on requests are served."""
        lanes: dict[str, Compute] = {TEXT: model.embed_texts}
        if model.images is not None:
            lanes[IMAGE] = model.embed_images
        thread = ModelThread(lanes, self._batch_limits, torch.inference_mode)
        self._ready = _Ready(model, thread, EmbeddingMemo(self._memo_entries, model.digest))

    async def embed_texts(self, texts: Sequence[str], partition: str = "") -> tuple[Embedding, ...]:
        """A unit vector a text, in order, remembered for `partition`. Longer texts are cut, as CLIP does."""
        self._check_texts(texts)

        async def prepare(indices: Sequence[int]) -> Sequence[Any]:
            return [texts[index] for index in indices]

        with self._taking() as ready:
            keys = [ready.memo.key(partition, TEXT, text.encode()) for text in texts]
            return await _embed(ready, TEXT, keys, prepare)

    async def embed_images(self, images: Sequence[bytes], partition: str = "") -> tuple[Embedding, ...]:
        """A unit vector an encoded image, in order; remembered for callers of `partition`. Raises FailedPrecondition
        NO_IMAGE_TOWER where the encoder has texts alone."""
        self._check_images(images)
        run = partial(asyncio.get_running_loop().run_in_executor, self._decoding)
        with self._taking() as ready:
            steps = ready.model.image_side().preprocessing

            async def prepare(indices: Sequence[int]) -> Sequence[Any]:
                return await run(lambda: [_pixels(steps, images[index], index) for index in indices])

            keys = await run(lambda: [ready.memo.key(partition, IMAGE, image) for image in images])
            return await _embed(ready, IMAGE, keys, prepare)

    def info(self) -> EmbedderInfo:
        ready = self._require_ready()
        batches = ready.thread.batch_count
        return EmbedderInfo(
            encoder_name=ready.model.name,
            encoder_digest=ready.model.digest,
            dimension_count=ready.model.encoder.dimension_count,
            memo_hit_count=ready.memo.hit_count,
            memo_miss_count=ready.memo.miss_count,
            mean_batch_size=ready.thread.item_count / batches if batches else 0.0,
            embeds_images=ready.model.images is not None,
        )

    async def close(self) -> None:
        """Take no more, finish what was taken, then end the threads."""
        self._closed = True
        await self._all_answered.wait()
        self._decoding.shutdown(wait=False)
        if self._ready is not None:
            await asyncio.to_thread(self._ready.thread.close)

    @contextmanager
    def _taking(self) -> Iterator["_Ready"]:
        """Count a call until it is answered. Raises Unavailable while the encoder is loaded, and once it closes."""
        ready = self._require_ready()
        if self._closed:
            raise Unavailable(Reason.DRAINING, "the embedder is stopping", retry_after_ms=500)
        self._taken_count += 1
        self._all_answered.clear()
        try:
            yield ready
        finally:
            self._taken_count -= 1
            if not self._taken_count:
                self._all_answered.set()

    def _check_texts(self, texts: Sequence[str]) -> None:
        _check_count("texts", len(texts), self._limits.max_texts)
        for index, text in enumerate(texts):
            _check_size(f"texts[{index}]", len(text.encode()), self._limits.max_text_bytes)
            if "\0" in text:
                raise InvalidArgument.of(f"texts[{index}]", "must not hold a NUL character")

    def _check_images(self, images: Sequence[bytes]) -> None:
        _check_count("images", len(images), self._limits.max_images)
        for index, image in enumerate(images):
            if not image:
                raise InvalidArgument.of(f"images[{index}]", "must not be empty")
            _check_size(f"images[{index}]", len(image), self._limits.max_image_bytes)

    def _require_ready(self) -> "_Ready":
        if self._ready is None:
            raise Unavailable("NOT_READY", "the encoder is being loaded", retry_after_ms=500)
        return self._ready


@dataclass(frozen=True)
class _Ready:
    model: EmbeddingModel
    thread: ModelThread
    memo: EmbeddingMemo


async def _embed(ready: _Ready, kind: str, keys: Sequence[bytes], prepare: Prepare) -> tuple[Embedding, ...]:
    """From the memo what is there; the rest is prepared, computed in one go and kept."""
    vectors = {key: ready.memo.get(key) for key in dict.fromkeys(keys)}
    missing = [key for key, vector in vectors.items() if vector is None]
    MEMO_HITS.labels(kind).inc(len(vectors) - len(missing))
    MEMO_MISSES.labels(kind).inc(len(missing))
    if missing:
        values = await prepare([keys.index(key) for key in missing])
        computing = [asyncio.wrap_future(future) for future in ready.thread.submit(kind, values)]
        for key, vector in zip(missing, await asyncio.gather(*computing), strict=True):
            ready.memo.put(key, vector)
            vectors[key] = vector
    dimensions, digest = ready.model.encoder.dimension_count, ready.model.digest
    return tuple(Embedding(vectors[key] or b"", dimensions, digest) for key in keys)


def _pixels(steps: ImagePreprocessing, image: bytes, index: int) -> Any:
    return decode(image, f"images[{index}]", lambda picture: to_pixels(picture, steps))


def _check_count(field: str, count: int, limit: int) -> None:
    if not 1 <= count <= limit:
        raise InvalidArgument.of(field, f"must be 1 to {limit}, got {count}")


def _check_size(field: str, size_bytes: int, limit: int) -> None:
    if size_bytes > limit:
        raise InvalidArgument.of(field, f"must be at most {limit} bytes, got {size_bytes}")
