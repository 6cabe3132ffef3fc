"""Define rows of the cache's ledger. Times are wall-clock seconds; vectors are float32, little-endian, of unit
length."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pentimento.domain.embedding import Space
from pentimento.domain.generation import CapturedEntries, ObjectReference


@dataclass(frozen=True)
class EncoderBinding:
    """Name the encoder of a space: vectors of two encoders are not comparable."""

    encoder_digest: str
    dimension_count: int
    space: Space = Space.TEXT


@dataclass(frozen=True)
class NumberedVector:
    """Hold an entry's number, which grows with every entry, its pool, and its prompt's vector."""

    sequence: int
    pool: str
    text: bytes = field(repr=False)


@dataclass(frozen=True)
class GrantedKey:
    """Name an object that a grant allows. `resume_step` is None for the final image."""

    key: str
    resume_step: int | None


@dataclass(frozen=True)
class GrantRecord:
    """Hold a grant's row. `pool` will own the entry: the tenant's, or the shared pool."""

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
    """Hold the data of a commit; the rest is known from its grant, which it must match. `compatibility_keys`: of each
    captured object by its resume step, None for the final image. `step_count` is of the run."""

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
    """Pin an object, the start of a tenant's image, until a time."""

    tenant: str
    request_id: str
    object: ObjectReference
    expires_at: float


@dataclass(frozen=True)
class HeldLatent:
    """Describe a latent that a live entry holds, after `resume_step` steps."""

    resume_step: int
    sigma: float
    object: ObjectReference
    compatibility_key: str


@dataclass(frozen=True)
class CachedEntry:
    """Describe an entry that may serve: a lookup must have named its `pool`, and the key of the object that serves.
    `tenant`: owner of the request that made the image; "" if unknown. `repeat_key`: digest of that request's prompt and
    seed; "" if unknown."""

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
    # The image has a vector of the encoder of images.
    is_seen: bool = True

    def request_id_for(self, tenant: str) -> str:
        """Return the request that made the image; "" for another tenant."""
        return self.request_id if self.tenant == tenant else ""


@dataclass(frozen=True)
class EntryVectors:
    """Hold the index's data of an entry: its vectors, and its objects' compatibility keys. Entries are numbered in
    order of arrival."""

    sequence: int
    entry_id: str
    pool: str
    compatibility_keys: tuple[str, ...]
    created_at: float
    text: bytes = field(repr=False)
    image: bytes | None = field(repr=False)


@dataclass(frozen=True)
class CacheTotals:
    """Count live entries and the objects they hold, with their bytes."""

    entry_count: int
    object_count: int
    size_bytes: int
    open_grant_count: int
