"""Rows of the cache's ledger. Times are wall-clock seconds; vectors are float32, little-endian, of unit length."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pentimento.domain.generation import CapturedEntries, ObjectReference


@dataclass(frozen=True)
class EncoderBinding:
    """The encoder whose embeddings the cache holds: vectors of two encoders are not comparable."""

    encoder_digest: str
    dimension_count: int


@dataclass(frozen=True)
class NumberedVector:
    """An entry's number, which grows with every entry, whose it is, and the vector of its prompt."""

    sequence: int
    pool: str
    text: bytes = field(repr=False)


@dataclass(frozen=True)
class GrantedKey:
    """An object that a grant allows. `resume_step` is None for the final image."""

    key: str
    resume_step: int | None


@dataclass(frozen=True)
class GrantRecord:
    """A grant as the ledger keeps it. `pool` is whose entry it becomes: the tenant's, or the shared pool's."""

    grant_id: str
    pool: str
    tenant: str
    scope_digest: str
    request_id: str
    fencing_token: int
    expires_at: float
    keys: tuple[GrantedKey, ...]


@dataclass(frozen=True)
class EntryCommit:
    """What a commit brings; the rest is known from its grant, which it must match. `compatibility_keys` has that of
    each captured object by its resume step, None for the final image. `step_count` is of the run."""

    entry_id: str
    captured: CapturedEntries
    tenant: str
    pool: str
    scope_digest: str
    compatibility_keys: Mapping[int | None, str]
    request_id: str
    fencing_token: int
    text_vector: bytes = field(repr=False)
    image_vector: bytes | None = field(repr=False)
    ancestor_depth: int
    created_at: float
    step_count: int
    repeat_key: str = ""


@dataclass(frozen=True)
class ObjectPin:
    """An object that a picture of the tenant's started from, and until when it is kept for that."""

    tenant: str
    request_id: str
    object: ObjectReference
    expires_at: float


@dataclass(frozen=True)
class HeldLatent:
    """A latent that a live entry holds, after so many steps."""

    resume_step: int
    sigma: float
    object: ObjectReference
    compatibility_key: str


@dataclass(frozen=True)
class CachedEntry:
    """An entry that may serve: `pool`, and the key of the object that serves, are what a lookup must have asked for.
    `tenant`: whose request's picture it is of; "" where that was not noted. `repeat_key`: digest of the prompt and seed
    of that request, "" where it was not noted."""

    entry_id: str
    pool: str
    created_at: float
    ancestor_depth: int
    latents: tuple[HeldLatent, ...] = ()
    image: ObjectReference | None = None
    image_key: str = ""
    tenant: str = ""
    request_id: str = ""
    repeat_key: str = ""

    def request_id_for(self, tenant: str) -> str:
        """Return the request whose picture it is of, "" for another tenant."""
        return self.request_id if self.tenant == tenant else ""


@dataclass(frozen=True)
class EntryVectors:
    """What the index should hold of an entry: its vectors, and the keys of the objects that it holds. Entries are
    numbered as they come."""

    sequence: int
    entry_id: str
    pool: str
    compatibility_keys: tuple[str, ...]
    created_at: float
    text: bytes = field(repr=False)
    image: bytes | None = field(repr=False)


@dataclass(frozen=True)
class CacheTotals:
    """Numbers and bytes of live entries and of the objects they hold."""

    entry_count: int
    object_count: int
    size_bytes: int
    open_grant_count: int
