"""Validate uploaded LoRAs, store them under their digests, and register them by name: in the ledger first, then in
memory, which plans are made from. Files of models are stored next to them; the repository names those."""

import asyncio
import json
import logging
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from pentimento.domain.adapters import Adapter, AdapterKind, LoraUpload
from pentimento.domain.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PentimentoError,
    ResourceExhausted,
)
from pentimento.domain.generation import ObjectReference
from pentimento.domain.models import OBJECTS_SOURCE, ModelFile, ModelVariant, RegisteredRow
from pentimento.files.file_sums import BlockHashes
from pentimento.files.lora_headers import judge_lora
from pentimento.files.safetensors_header import header_length
from pentimento.stores.components.remote import put_sums, sums_key
from pentimento.stores.errors import ObjectCorrupt, ObjectMissing
from pentimento.stores.ledger.fleet_ledger import FleetLedger
from pentimento.stores.objects import ObjectStore
from services.controller.checks import check_upload
from services.controller.model_checks import WEIGHTS_SUFFIX, check_file
from services.controller.repository import wholly

logger = logging.getLogger(__name__)

# The largest uploaded LoRA, held in memory; twice as much for all uploads.
MAX_LORA_BYTES = 512 * 2**20
KIND = "lora"
# Kind of the rows with the digest of a LoRA's block hashes.
BLOCKS_KIND = "lora_blocks"
# Kind of the row that identifies the registry: the object store may also hold LoRAs of another ledger.
STORE_KIND = "lora_store"
# Limited, since every plan names all LoRAs to every frontdoor.
MAX_UPLOADED = 1024
# An upload is aborted after this silence, or once it is that late at the least rate.
SILENCE_S = 30.0
# Uploads at a time, each on a thread that waits for its client.
MOST_AT_ONCE = 64
LEAST_BYTES_PER_S = 256 * 1024
# The file of a removed LoRA or model stays for this time, for running requests.
REMOVED_KEEP_S = 3600.0
# Files of models at a time, each with a few parts in memory.
MOST_MODEL_FILES = 2


class ArrivingFile:
    """Read the bytes of chunks as they arrive, in one thread, hash their blocks, and keep the first ones of a
    safetensors file, up to its header's end. Only the loop may call `close`: the thread's next read raises an error."""

    def __init__(self, chunks: AsyncIterator[bytes], size_bytes: int) -> None:
        """Create the reader, on the event loop."""
        self.head = b""
        self.blocks = BlockHashes()
        self._chunks = chunks
        self._size_bytes = size_bytes
        self._loop = asyncio.get_running_loop()
        self._left = b""
        self._arriving: Future[bytes] | None = None
        self._is_closed = False

    def read(self, size: int, /) -> bytes:
        """Wait for a chunk, and return at most `size` bytes of it; none at the end. Raises the chunks' errors."""
        if not self._left:
            if self._is_closed:
                raise asyncio.CancelledError
            self._arriving = asyncio.run_coroutine_threadsafe(self._next(), self._loop)
            self._left = self._arriving.result()
            self._keep_head()
            self.blocks.add(self._left)
        data, self._left = self._left[:size], self._left[size:]
        return data

    def close(self) -> None:
        """End the thread's reading."""
        self._is_closed = True
        if self._arriving is not None:
            self._arriving.cancel()

    async def _next(self) -> bytes:
        async for chunk in self._chunks:
            if chunk:
                return chunk
        return b""

    def _keep_head(self) -> None:
        try:
            wanted = 8 + header_length(self.head, self._size_bytes) if len(self.head) >= 8 else 8
        except ValueError:
            return
        if len(self.head) < wanted:
            self.head += self._left


class UploadedAdapters:
    """Receive uploads of LoRAs on one event loop, and store them as they arrive. Of running uploads, `max_bytes` bounds
    each one, all of a caller's together, and half of all; an upload that does not fit waits. An upload that is silent
    for `silence_s`, or that long late at `LEAST_BYTES_PER_S`, is aborted. `changed` receives the LoRAs after each
    change. An object without a name, and not of `model_digests`, is deleted after REMOVED_KEEP_S: running requests may
    need it until then."""

    def __init__(
        self,
        ledger: FleetLedger,
        objects: ObjectStore,
        max_bytes: int,
        changed: Callable[[tuple[Adapter, ...]], None],
        silence_s: float = SILENCE_S,
        model_digests: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._ledger = ledger
        self._objects = objects
        self._max_bytes = max_bytes
        self._changed = changed
        self._known: dict[str, Adapter] = {}
        # Digests of the hashes of their blocks, by digest.
        self._blocks: dict[str, str] = {}
        self._prefix = ""
        self._silence_s = silence_s
        # Held while LoRAs change or unnamed objects are deleted, never while an upload is received.
        self._turn = asyncio.Lock()
        self._room = asyncio.Condition()
        # Bytes of running uploads, by caller.
        self._received: Counter[str] = Counter()
        # Objects of running uploads, which have no name yet.
        self._storing: Counter[str] = Counter()
        self._threads = ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="upload")
        self._model_digests = model_digests
        self._model_turns = asyncio.Semaphore(MOST_MODEL_FILES)

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """Return the registered LoRAs, ordered by name."""
        return tuple(self._known[name] for name in sorted(self._known))

    async def load(self) -> None:
        """Load the ledger's LoRAs. Changes state. Raises the ledger's errors."""
        # The ledger rejects this if it already has an id.
        await asyncio.wrap_future(
            self._ledger.register(RegisteredRow(STORE_KIND, "id", "", f'"{secrets.token_hex(8)}"'))
        )
        rows = await asyncio.wrap_future(self._ledger.registered())
        (store_id,) = (json.loads(row.document) for row in rows if row.kind == STORE_KIND)
        self._prefix = f"adapters/{store_id}/"
        self._blocks = {row.name: row.digest for row in rows if row.kind == BLOCKS_KIND}
        self._known = {row.name: self._adapter_of(row) for row in rows if row.kind == KIND}
        self._changed(self.adapters)

    async def add(self, upload: LoraUpload, chunks: AsyncIterator[bytes], caller: str = "") -> Adapter:
        """Receive, validate and store a LoRA, and return it as an adapter. Changes state. `caller`: the tenant. Raises
        InvalidArgument that names field and limit, FailedPrecondition NAME_TAKEN, ResourceExhausted, DeadlineExceeded
        (UPLOAD_STALLED), and the stores' errors."""
        check_upload(upload, self._max_bytes)
        adapter = self._adapter_of(_row_of(upload))
        self._check_room_for(adapter)
        async with self._receiving(caller, upload.size_bytes):
            key = self._key_of(upload.digest)
            self._storing[key] += 1
            try:
                blocks_digest = await self._store(key, upload, adapter, chunks)
                async with self._turn:
                    self._check_room_for(adapter)
                    return await wholly(self._name(upload, blocks_digest))
            finally:
                self._storing -= Counter({key: 1})

    async def _store(self, key: str, upload: LoraUpload, adapter: Adapter, chunks: AsyncIterator[bytes]) -> str:
        """Store the file as it arrives, a few chunks in memory at a time, and the hashes of its blocks; return their
        digest. A wrong file is never readable."""

        def check(file: ArrivingFile, found: ObjectReference) -> None:
            _check_digest("upload.digest", upload.digest, found)
            judge_lora(file.head, "file", found.size_bytes)
            self._check_room_for(adapter)

        blocks = await self._put(key, "upload", upload.size_bytes, chunks, check)
        return await asyncio.to_thread(put_sums, self._objects, key, blocks)

    async def _put(
        self,
        key: str,
        field: str,
        size_bytes: int,
        chunks: AsyncIterator[bytes],
        check: Callable[[ArrivingFile, ObjectReference], None],
    ) -> tuple[str, ...]:
        """Store a file as it arrives, and return the hashes of its blocks; `check` sees it before it is readable."""
        file = ArrivingFile(_received(field, size_bytes, chunks, self._silence_s), size_bytes)
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._threads, self._objects.put_file, key, file, partial(check, file))
        finally:
            file.close()
        return file.blocks.result()

    async def add_file(self, file: ModelFile, chunks: AsyncIterator[bytes]) -> None:
        """Receive and store a model's file. Changes state. Raises InvalidArgument that names field and limit,
        DeadlineExceeded (UPLOAD_STALLED), and the store's errors."""
        check_file("file", file)

        def check(arrived: ArrivingFile, found: ObjectReference) -> None:
            _check_digest("file.sha256", file.digest, found)
            if file.path.endswith(WEIGHTS_SUFFIX):
                _check_header(arrived.head, found.size_bytes)

        key = self._key_of(file.digest)
        async with self._model_turns:
            self._storing[key] += 1
            try:
                blocks = await self._put(key, "file", file.size_bytes, chunks, check)
                if blocks != file.blocks:
                    raise InvalidArgument.of("file.blocks", "must be the hashes of the file's blocks of 8 MiB")
            finally:
                self._storing -= Counter({key: 1})

    async def missing(self, files: Collection[ModelFile]) -> tuple[str, ...]:
        """Return the sha256 of the files that are not stored. Raises the store's errors."""
        return await asyncio.to_thread(
            lambda: tuple(dict.fromkeys(file.sha256 for file in files if not self._is_stored(file)))
        )

    async def located(self, model: ModelVariant) -> ModelVariant:
        """Return a model with the keys' prefix in its source. Raises FailedPrecondition FILES_MISSING, and the store's
        errors."""
        if missing := await self.missing(model.stored_files):
            paths = [file.path for file in model.files if file.sha256 in missing]
            message = f"model.files: {', '.join(paths)[:200]} must be uploaded first"
            raise FailedPrecondition("FILES_MISSING", message)
        return replace(model, source=OBJECTS_SOURCE + self._prefix)

    def _is_stored(self, file: ModelFile) -> bool:
        stored = ObjectReference(self._key_of(file.digest), file.digest, file.size_bytes)
        try:
            self._objects.read_into(stored, 0, bytearray(min(1, file.size_bytes)))
        except (ObjectMissing, ObjectCorrupt):
            return False
        return True

    async def _name(self, upload: LoraUpload, blocks_digest: str) -> Adapter:
        blocks = RegisteredRow(BLOCKS_KIND, upload.digest, blocks_digest, "{}")
        await asyncio.wrap_future(self._ledger.register(blocks))
        self._blocks[upload.digest] = blocks_digest
        row, known = _row_of(upload), self._known.get(upload.name)
        is_signed_again = known is not None and known.signed_entry != upload.signed_entry
        written = self._ledger.replace(row) if is_signed_again else self._ledger.register(row)
        if not await asyncio.wrap_future(written):
            raise _name_taken(upload.name)
        adapter = self._known[upload.name] = self._adapter_of(row)
        self._changed(self.adapters)
        logger.info("a LoRA was added", extra={"lora": upload.name, "digest": upload.digest})
        return adapter

    def _check_room_for(self, adapter: Adapter) -> None:
        known = self._known.get(adapter.name)
        # They may differ in their places: sums of blocks are registered with the file. A signature is replaced by
        # another one, and removed only with the name.
        if known is not None:
            plain = [replace(one, object=None, signed_entry="") for one in (known, adapter)]
            if plain[0] != plain[1] or (known.signed_entry and not adapter.signed_entry):
                raise _name_taken(adapter.name)
        if known is None and len(self._known) >= MAX_UPLOADED:
            raise ResourceExhausted("TOO_MANY_LORAS", f"there are {MAX_UPLOADED} LoRAs, which is the limit")

    @asynccontextmanager
    async def _receiving(self, caller: str, size_bytes: int) -> AsyncIterator[None]:
        async with self._room:
            await self._room.wait_for(lambda: self._has_room(caller, size_bytes))
            self._received[caller] += size_bytes
        try:
            yield
        finally:
            self._received -= Counter({caller: size_bytes})
            async with self._room:
                self._room.notify_all()

    def _has_room(self, caller: str, size_bytes: int) -> bool:
        fits = self._received.total() + size_bytes <= 2 * self._max_bytes
        return fits and self._received[caller] + size_bytes <= self._max_bytes

    async def remove(self, name: str) -> None:
        """Remove the name of a LoRA. Changes state. Raises NotFound."""
        async with self._turn:
            await wholly(self._unname(name))

    async def _unname(self, name: str) -> None:
        there = await asyncio.wrap_future(self._ledger.unregister(KIND, name))
        if self._known.pop(name, None) is None and not there:
            raise NotFound("UNKNOWN_LORA", f"name: no LoRA {name[:80]!r} was uploaded")
        self._changed(self.adapters)
        logger.info("a LoRA was removed", extra={"lora": name})

    async def run(self) -> None:
        """Delete objects that had no name at two sweeps, REMOVED_KEEP_S apart."""
        before: frozenset[str] = frozenset()
        while True:
            try:
                before = await self.sweep(before)
            except PentimentoError as error:
                logger.warning("uploaded LoRAs could not be swept: %s", error.message)
            await asyncio.sleep(REMOVED_KEEP_S)

    async def sweep(self, unnamed_before: frozenset[str]) -> frozenset[str]:
        """Delete the objects of `unnamed_before` that still have no name, and return the keys of the other unnamed
        ones. Changes state. Raises the store's errors."""
        async with self._turn:
            digests = [*(adapter.digest for adapter in self._known.values()), *self._model_digests()]
            files = {*map(self._key_of, digests)} | self._storing.keys()
            named = files | set(map(sums_key, files))
            keys = frozenset(await asyncio.to_thread(lambda: list(self._objects.keys(self._prefix)))) - named
            for key in keys & unnamed_before:
                await asyncio.to_thread(self._objects.delete, key)
                logger.info("the file of a removed LoRA or model was deleted", extra={"object": key})
        return keys - unnamed_before

    def _adapter_of(self, row: RegisteredRow) -> Adapter:
        said = json.loads(row.document)
        blocks_digest = self._blocks.get(row.digest, "")
        stored = ObjectReference(self._key_of(row.digest), row.digest, said.pop("size_bytes"), blocks_digest)
        return Adapter(name=row.name, kind=AdapterKind.LORA, digest=row.digest, object=stored, **said)

    def _key_of(self, digest: str) -> str:
        return self._prefix + digest.removeprefix("sha256:")


async def _received(
    field: str, expected_bytes: int, chunks: AsyncIterator[bytes], silence_s: float
) -> AsyncIterator[bytes]:
    """Yield the file's chunks. Raises DeadlineExceeded UPLOAD_STALLED, and InvalidArgument for another size."""
    size_bytes, loop = 0, asyncio.get_running_loop()
    began_s = loop.time()
    due_s = began_s + silence_s
    while size_bytes <= expected_bytes:
        try:
            async with asyncio.timeout_at(due_s):
                chunk = await anext(chunks, None)
        except TimeoutError:
            limit = f"no bytes of the file for {silence_s:g} s, or less than {LEAST_BYTES_PER_S // 1024} KiB a second"
            message = f"{limit}, after {size_bytes} of {expected_bytes} bytes"
            raise DeadlineExceeded("UPLOAD_STALLED", message) from None
        if chunk is None:
            break
        size_bytes += len(chunk)
        if chunk:
            due_s = min(loop.time(), began_s + size_bytes / LEAST_BYTES_PER_S) + silence_s
            yield chunk
    if size_bytes != expected_bytes:
        got = f"more than that came, {size_bytes}" if size_bytes > expected_bytes else f"{size_bytes} came"
        raise InvalidArgument.of(f"{field}.size_bytes", f"must be those of the file, {expected_bytes}: {got}")


def _check_digest(field: str, digest: str, found: ObjectReference) -> None:
    if found.digest != digest:
        raise InvalidArgument.of(field, f"must be that of the file as it arrived, {found.digest}")


def _check_header(head: bytes, size_bytes: int) -> None:
    try:
        header_length(head, size_bytes)
    except ValueError as error:
        raise InvalidArgument.of("file", f"must be a safetensors file: {error}") from None


def _row_of(upload: LoraUpload) -> RegisteredRow:
    said = {name: value for name, value in vars(upload).items() if name not in ("name", "digest")}
    if not upload.signed_entry:
        # Rows of earlier versions lack it, and the same LoRA must give the same row.
        del said["signed_entry"]
    return RegisteredRow(KIND, upload.name, upload.digest, json.dumps(said, sort_keys=True))


def _name_taken(name: str) -> FailedPrecondition:
    message = f"upload.name: {name} names another LoRA, or a signed one; remove it first, or use another name"
    return FailedPrecondition("NAME_TAKEN", message)
