"""Hold the tiers of a host: a component that is missing on the local disk is fetched, verified and kept there."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from pentimento.domain.adapters import is_digest
from pentimento.domain.components import ComponentRule, HeldComponent, Tier
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import ObjectReference
from pentimento.files.file_sums import CorruptComponent, FileSum, read_blocks, read_verified
from pentimento.stores.components.blocks import PartialFile
from pentimento.stores.components.disk import DiskTier, HeldBlob
from pentimento.stores.components.host import HostTier
from pentimento.stores.components.remote import Download, Peers, Remote, no_peers

logger = logging.getLogger(__name__)
T = TypeVar("T")


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
