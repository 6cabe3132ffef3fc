"""Hold the tiers of a host: the local disk, which missing components are fetched to, and the host's memory: the
kernel's cache of the disk, which all processes of a host share. Copies in /dev/shm would take the memory twice; reads
past the cache (O_DIRECT) were no faster than through it."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from pentimento.domain.adapters import is_digest
from pentimento.domain.components import ComponentRule, HeldComponent, Loadable, Tier, victims
from pentimento.domain.errors import InvalidArgument, PentimentoError
from pentimento.domain.generation import ObjectReference
from pentimento.files.file_sums import CorruptComponent, FileSum, read_blocks, read_verified
from pentimento.stores.components.disk import DiskTier, HeldBlob
from pentimento.stores.components.remote import Download, ObjectRemote, PartialFile, Peers, Remote, no_peers
from pentimento.stores.objects.store import ObjectStore

logger = logging.getLogger(__name__)
T = TypeVar("T")


# A component's bytes come from the disk at about this rate.
DISK_BYTES_PER_S = 1e9


class HostTier:
    """Bound the memory that components take: those beyond it are removed from the kernel's cache after their use.
    Thread-safe. With 0 bytes the kernel alone decides."""

    def __init__(self, max_bytes: int, rule: ComponentRule) -> None:
        self._max_bytes = max_bytes
        self._rule = rule
        self._warm: dict[str, tuple[Loadable, Path]] = {}
        self._lock = threading.Lock()

    def note_use(self, path: Path, size_bytes: int) -> None:
        """Count a use of a component, after it. If there is no room, others leave memory, or it does."""
        if not self._max_bytes:
            return
        one, now_s = Loadable(path.name, size_bytes, size_bytes / DISK_BYTES_PER_S), time.monotonic()
        with self._lock:
            self._rule.note_use(one, now_s)
            warm = [each for each, _ in self._warm.values()]
            needed_bytes = sum(each.memory_bytes for each in warm) + size_bytes - self._max_bytes
            leaving = () if path.name in self._warm else victims(self._rule, warm, needed_bytes, now_s)
            if leaving is None:
                _forget(path)
                return
            for name in leaving:
                gone, place = self._warm.pop(name)
                self._rule.note_eviction(gone, now_s)
                _forget(place)
            self._warm[path.name] = (one, path)


def _forget(path: Path) -> None:
    """Remove a file from the kernel's cache; harmless for processes that read it."""
    with suppress(OSError), path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@dataclass(frozen=True)
class StoredComponent:
    """Describe a component on the local disk: its digest, its size, and whether it is pinned."""

    digest: str
    size_bytes: int
    pinned: bool


class ComponentStore:
    """Find components by digest. Thread-safe; processes that share a directory fetch each component once."""

    def __init__(
        self,
        directory: Path,
        disk_bytes: int,
        host_bytes: int,
        new_rule: Callable[[], ComponentRule],
        peers: Peers = no_peers,
    ) -> None:
        """Open the store. `new_rule` ranks the components of a tier for eviction; `host_bytes` 0 leaves memory to the
        kernel; `peers` come before the remote store. Raises StoreUnavailable."""
        self._peers = peers
        self._disk = DiskTier(directory, disk_bytes, new_rule())
        self._host = HostTier(host_bytes, new_rule())

    def read(self, reference: ObjectReference, remote: Remote) -> tuple[bytearray, FileSum]:
        """Return a component's bytes, verified, and its sum. Raises as `load`."""
        return self.load(reference, remote, lambda held: (read_verified(held.path, held.sum, DiskTier.name), held.sum))

    def load(self, reference: ObjectReference, remote: Remote, loader: Callable[[HeldBlob], T]) -> T:
        """Return what `loader` makes of a component; it verifies the blocks that it reads. One with wrong bytes on disk
        is set aside and fetched once more. Raises CorruptComponent that names component and source, StoreFull for one
        that does not fit, and the stores' errors."""
        with self.holding(reference, remote) as held:
            try:
                return loader(held)
            except CorruptComponent as error:
                logger.warning("a component is fetched again: %s", error.message)
                self._disk.set_aside(held.path.name, held.descriptor)
        with self.holding(reference, remote) as held:
            return loader(held)

    def read_range(self, digest: str, offset: int, size: int) -> bytes | None:
        """Return a part of a component for a peer, which verifies it; None if the local disk does not have it. It
        counts as no use. Raises InvalidArgument for a wrong digest, StoreUnavailable."""
        return self._disk.read_range(_name_of(digest), offset, size)

    def components(self) -> tuple[StoredComponent, ...]:
        """Return the components on the local disk."""
        pinned = self._disk.pinned
        return tuple(
            StoredComponent(f"sha256:{one.name}", one.memory_bytes, one.name in pinned)
            for one in self._disk.components()
        )

    def held(self) -> tuple[HeldComponent, ...]:
        """Return the components on the local disk for a report, the last used one at the end. It counts no use."""
        return tuple(HeldComponent(f"sha256:{name}", Tier.DISK, status.st_size) for name, status in self._disk.found())

    def pin(self, digest: str, *, pinned: bool) -> None:
        """Never evict a component, or evict it again."""
        self._disk.pin(_name_of(digest), pinned=pinned)

    def drop(self, digest: str) -> bool:
        """Delete a component unless it is in use, and return whether it is gone."""
        return self._disk.drop(_name_of(digest))

    @contextmanager
    def holding(self, reference: ObjectReference, remote: Remote) -> Iterator[HeldBlob]:
        """Fetch a component if it is missing, and keep it on the local disk during the block. Raises as `load`."""
        with self._in_use(self._have(reference, remote)) as held:
            yield held

    @contextmanager
    def adopting(self, label: str, reference: ObjectReference, remote: Remote) -> Iterator[HeldBlob]:
        """Fetch an object without a known digest, and keep it during the block; its digest is that of its bytes. A
        fetch with the same `label` resumes. Raises as `load`."""
        name = sha256(label.encode()).hexdigest()
        with self._disk.filling(name, reference.size_bytes) as file:
            assert file is not None, "no component has the digest of a label"
            Download(reference, remote, lambda index, block: None).run(file, None)
            self._disk.complete(file, found := file.sum())
        with self._in_use(self._have(replace(reference, digest=found.digest), remote)) as held:
            yield held

    def check_room(self, size_bytes: int) -> None:
        """Raise StoreFull for components that do not fit on the local disk together."""
        self._disk.check_room(size_bytes)

    def set_aside_if_wrong(self, held: HeldBlob) -> None:
        """Verify a component, and move it to the quarantine if a block is wrong."""
        try:
            for _ in read_blocks(held.path, held.sum):
                pass
        except CorruptComponent:
            self._disk.set_aside(held.path.name, held.descriptor)

    @contextmanager
    def _in_use(self, held: HeldBlob) -> Iterator[HeldBlob]:
        try:
            yield held
        finally:
            os.close(held.descriptor)
            self._host.note_use(held.path, held.sum.size_bytes)

    def _have(self, reference: ObjectReference, remote: Remote) -> HeldBlob:
        name = _name_of(reference.digest)
        while (held := self._disk.hold(name)) is None:
            with self._disk.filling(name, reference.size_bytes) as file:
                if file is not None:
                    self._fetch(reference, remote, file)
        return held

    def _fetch(self, reference: ObjectReference, remote: Remote, file: PartialFile) -> None:
        """Fetch a component's missing blocks. Without sums of its blocks it is verified as a whole, and fetched once
        more if it is another one."""
        expected = remote.sums(reference)
        peers = self._peers(reference.digest) if expected is not None else ()
        download = Download(reference, remote, partial(self._disk.keep_bad_block, file.path.name), peers)
        for _ in range(2):
            download.run(file, expected)
            found = expected or file.sum()
            if found.digest == reference.digest:
                self._disk.complete(file, found)
                return
            file.forget()
        raise CorruptComponent(reference.digest, remote.name, f"they have the digest {found.digest}")


def _name_of(digest: str) -> str:
    if not is_digest(digest):
        raise InvalidArgument.of("digest", f"must be sha256:<64 hex digits>, got {digest[:80]!r}")
    return digest.removeprefix("sha256:")


@dataclass(frozen=True)
class LocalComponents:
    """Hold the components on a host's disk, at most `disk_bytes`, and the object store, which has all."""

    store: ComponentStore
    objects: ObjectStore
    disk_bytes: int

    @property
    def remote(self) -> ObjectRemote:
        return ObjectRemote(self.objects)

    def fetch_ahead(self, references: Iterable[ObjectReference]) -> None:
        """Fetch components to the disk, in order, as long as they fit without an eviction; on any thread. The first
        failure ends it: requests fetch what they need themselves."""
        held = {one.digest: one.size_bytes for one in self.store.held()}
        room_bytes = self.disk_bytes - sum(held.values())
        for reference in references:
            if reference.digest in held or reference.size_bytes > room_bytes:
                continue
            try:
                self.store.load(reference, self.remote, lambda component: None)
            except PentimentoError as error:
                logger.warning("a component was not fetched ahead of need: %s", error.message)
                return
            room_bytes -= reference.size_bytes
