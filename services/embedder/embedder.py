"""Turn texts and images into embeddings: limits, memo, then the model thread."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import InvalidArgument, Unavailable
from pentimento.service.batching import BatchingLimits, Compute, ModelThread, TakenWork
from services.embedder import metrics
from services.embedder.model import EmbeddingModel


class EmbeddingMemo:
    """The `capacity` entries used last; 0 keeps none. Belongs to one thread.

    A key is a digest over encoder, partition, kind and content, so neither prompts nor images are kept, and the time of
    an answer reveals no prompt of another tenant.
    """

    def __init__(self, capacity: int, encoder_digest: str) -> None:
        self._capacity = capacity
        self._encoder = encoder_digest.encode()
        self._entries: OrderedDict[bytes, bytes] = OrderedDict()
        self.hit_count = 0
        self.miss_count = 0

    def key(self, partition: str, kind: str, content: bytes) -> bytes:
        digest = hashlib.sha256(self._encoder)
        for part in (partition.encode(), kind.encode()):
            digest.update(len(part).to_bytes(8, "little") + part)
        digest.update(content)
        return digest.digest()

    def get(self, key: bytes) -> bytes | None:
        """Return the vector, which becomes the youngest entry (changes state)."""
        vector = self._entries.get(key)
        if vector is None:
            self.miss_count += 1
            return None
        self._entries.move_to_end(key)
        self.hit_count += 1
        return vector

    def put(self, key: bytes, vector: bytes) -> None:
        """Changes state: drops the oldest entry above the capacity."""
        self._entries[key] = vector
        self._entries.move_to_end(key)
        if len(self._entries) > self._capacity:
            self._entries.popitem(last=False)

    def __len__(self) -> int:
        return len(self._entries)


TEXT, IMAGE = "text", "image"
# Turn indices of a call's texts or images into the input of the model thread.
Prepare = Callable[[Sequence[int]], Awaitable[Sequence[Any]]]
# Limits of one call, checked before anything is computed: texts with their UTF-8 bytes, and encoded images.
MAX_TEXTS, MAX_TEXT_BYTES = 64, 16 * 1024
MAX_IMAGES, MAX_IMAGE_BYTES = 16, 8 * 1024 * 1024
_BATCHES = BatchingLimits()


class Embedder:
    """Serves one event loop, which it never blocks. `start` gives it its model; until then it is Unavailable."""

    def __init__(self, batch_limits: BatchingLimits = _BATCHES, memo_entries: int = 8192) -> None:
        self._batch_limits = batch_limits
        self._memo_entries = memo_entries
        self._ready: ReadyEncoder | None = None
        self._taken = TakenWork("embedder")
        # One thread: images are decoded one at a time.
        self._decoding = ThreadPoolExecutor(1, thread_name_prefix="decode")

    def start(self, model: EmbeddingModel) -> None:
        """Changes state: from now on requests are served."""
        lanes: dict[str, Compute] = {TEXT: model.embed_texts}
        if model.images is not None:
            lanes[IMAGE] = model.embed_images
        thread = ModelThread(lanes, self._batch_limits, torch.inference_mode, _count)
        self._ready = ReadyEncoder(model, thread, EmbeddingMemo(self._memo_entries, model.digest))

    async def embed_texts(self, texts: Sequence[str], partition: str = "") -> tuple[Embedding, ...]:
        """Return a unit vector per text, in order, remembered for `partition`. Longer texts are cut, as CLIP does."""
        _check_texts(texts)
        ready = self.ready()

        async def prepare(indices: Sequence[int]) -> Sequence[Any]:
            return [texts[index] for index in indices]

        with self._taken.taking():
            keys = [ready.memo.key(partition, TEXT, text.encode()) for text in texts]
            return await _embed(ready, TEXT, keys, prepare)

    async def embed_images(self, images: Sequence[bytes], partition: str = "") -> tuple[Embedding, ...]:
        """Return a unit vector per encoded image, in order, remembered for `partition`. Raises FailedPrecondition
        NO_IMAGE_TOWER if the encoder embeds texts only."""
        _check_images(images)
        ready = self.ready()
        run = partial(asyncio.get_running_loop().run_in_executor, self._decoding)
        with self._taken.taking():
            side = ready.model.image_side()

            async def prepare(indices: Sequence[int]) -> Sequence[Any]:
                return await run(lambda: [side.prepare(images[index], f"images[{index}]") for index in indices])

            keys = await run(lambda: [ready.memo.key(partition, IMAGE, image) for image in images])
            return await _embed(ready, IMAGE, keys, prepare)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the name of the encoder; none before `start`."""
        return () if self._ready is None else (self._ready.model.name,)

    def ready(self) -> "ReadyEncoder":
        """Return the encoder with its thread and memo. Raises Unavailable before `start`."""
        if self._ready is None:
            raise Unavailable("NOT_READY", "the encoder is being loaded", retry_after_ms=500)
        return self._ready

    async def close(self) -> None:
        """Take no more, finish the accepted calls, then end the threads."""
        await self._taken.close()
        self._decoding.shutdown(wait=False)
        if self._ready is not None:
            await asyncio.to_thread(self._ready.thread.close)


@dataclass(frozen=True)
class ReadyEncoder:
    """A loaded encoder, its thread, and its memo."""

    model: EmbeddingModel
    thread: ModelThread
    memo: EmbeddingMemo


async def _embed(ready: ReadyEncoder, kind: str, keys: Sequence[bytes], prepare: Prepare) -> tuple[Embedding, ...]:
    """Return embeddings by their keys; the ones that the memo lacks are computed in one batch and kept."""
    vectors = {key: ready.memo.get(key) for key in dict.fromkeys(keys)}
    missing = [key for key, vector in vectors.items() if vector is None]
    metrics.MEMO_HITS.labels(kind).inc(len(vectors) - len(missing))
    metrics.MEMO_MISSES.labels(kind).inc(len(missing))
    if missing:
        values = await prepare([keys.index(key) for key in missing])
        for key, vector in zip(missing, await ready.thread.run(kind, values), strict=True):
            ready.memo.put(key, vector)
            vectors[key] = vector
    dimensions, digest = ready.model.encoder.dimension_count, ready.model.digest
    return tuple(Embedding(vectors[key] or b"", dimensions, digest) for key in keys)


def _count(kind: str, waited_s: Sequence[float], seconds: float) -> None:
    for each_s in waited_s:
        metrics.QUEUE_SECONDS.labels(kind).observe(each_s)
    metrics.BATCHES.labels(kind).inc()
    metrics.BATCHED_ITEMS.labels(kind).inc(len(waited_s))
    metrics.BATCH_SECONDS.labels(kind).observe(seconds)


def _check_texts(texts: Sequence[str]) -> None:
    _check_count("texts", len(texts), MAX_TEXTS)
    for index, text in enumerate(texts):
        _check_size(f"texts[{index}]", len(text.encode()), MAX_TEXT_BYTES)
        if "\0" in text:
            raise InvalidArgument.of(f"texts[{index}]", "must not hold a NUL character")


def _check_images(images: Sequence[bytes]) -> None:
    _check_count("images", len(images), MAX_IMAGES)
    for index, image in enumerate(images):
        if not image:
            raise InvalidArgument.of(f"images[{index}]", "must not be empty")
        _check_size(f"images[{index}]", len(image), MAX_IMAGE_BYTES)


def _check_count(field: str, count: int, limit: int) -> None:
    if not 1 <= count <= limit:
        raise InvalidArgument.of(field, f"must be 1 to {limit}, got {count}")


def _check_size(field: str, size_bytes: int, limit: int) -> None:
    if size_bytes > limit:
        raise InvalidArgument.of(field, f"must be at most {limit} bytes, got {size_bytes}")
