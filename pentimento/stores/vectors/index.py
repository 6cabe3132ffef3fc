"""Define the interface of vector indexes, their points and queries: every search is filtered by tenant."""

import re
import uuid
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pentimento.domain.embedding import Space
from pentimento.domain.errors import InvalidArgument


@dataclass(frozen=True)
class Dimensions:
    """Count the dimensions of the two vectors of a point: of the prompt, and of its image."""

    text: int
    image: int

    @classmethod
    def given(cls, text: int, image: int | None) -> "Dimensions":
        """Return the dimensions of both spaces; None: the same as for texts."""
        return cls(text, text if image is None else image)

    def of(self, space: Space) -> int:
        """Return the dimensions of a space."""
        return self.text if space is Space.TEXT else self.image

    @property
    def name(self) -> str:
        """Return a short name, such as d512, or d384-i512 for two sizes."""
        return f"d{self.text}" if self.text == self.image else f"d{self.text}-i{self.image}"

    @classmethod
    def named(cls, name: str) -> "Dimensions | None":
        """Return the dimensions of a name; None for any other text."""
        found = re.fullmatch(r"d(\d+)(?:-i(\d+))?", name, re.ASCII)
        return None if found is None else cls(int(found[1]), int(found[2] or found[1]))


@dataclass(frozen=True)
class VectorPoint:
    """Describe an entry. `entry_id` is a UUID; vectors are float32, little-endian, of unit length; `created_at` wall
    seconds. `compatibility_keys` are the keys of its objects: a search for any of the keys finds it. An entry that
    loses a key is upserted again."""

    entry_id: str
    tenant: str
    compatibility_keys: tuple[str, ...]
    created_at: float
    text: bytes = field(repr=False)
    image: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not _is_uuid(self.entry_id):
            raise InvalidArgument.of("entry_id", "must be a UUID in its canonical form")
        _require("tenant", self.tenant)
        _require_some("compatibility_keys", self.compatibility_keys)

    def payload(self) -> dict[str, Any]:
        """Return the fields that an index stores with the vectors."""
        keys = list(self.compatibility_keys)
        return {"tenant": self.tenant, "compatibility_key": keys, "created_at": self.created_at}


@dataclass(frozen=True)
class VectorQuery:
    """Search the points of any of `tenants` that have any of `compatibility_keys`. Both are required: every backend
    filters by `conditions`."""

    space: Space
    vector: bytes = field(repr=False)
    tenants: tuple[str, ...]
    compatibility_keys: tuple[str, ...]
    limit_count: int = 1

    def __post_init__(self) -> None:
        _require_some("tenants", self.tenants)
        _require_some("compatibility_keys", self.compatibility_keys)
        if not 1 <= self.limit_count <= 100:
            raise InvalidArgument.of("limit_count", f"must be between 1 and 100, got {self.limit_count}")

    def conditions(self) -> dict[str, list[str]]:
        """Return the payload fields with their allowed values; a point must meet every field. The only place that
        defines them."""
        return {"tenant": list(self.tenants), "compatibility_key": list(self.compatibility_keys)}


@dataclass(frozen=True)
class VectorMatch:
    """Name a point that a search found; `similarity` is the cosine, -1..1."""

    entry_id: str
    similarity: float


class VectorIndex(Protocol):
    """Store points by id, and search them by cosine. All methods raise StoreUnavailable when the backend is away.

    `search` belongs to one event loop. The other methods block and are thread-safe; `prepare`, `upsert` and `delete`
    change state, durably once they return.
    """

    @property
    def backend(self) -> str:
        """Return the kind of index: `qdrant-edge` or `qdrant`."""

    @property
    def starts_count(self) -> int:
        """Return how often the holder of the points was started, if the index knows: after another start some points
        may be lost."""

    def prepare(self, text: int, image: int | None = None) -> None:
        """Make or open the index; `text` and `image` count the dimensions of each space, None: the same.

        Points of other dimensions stay until `settle`, and are searched meanwhile in the space that did not change.
        Changes go to the new index, which has to be filled."""

    def settle(self) -> None:
        """Delete the points of other dimensions than the prepared ones: the index is complete without them."""

    async def search(self, query: VectorQuery, timeout_s: float) -> list[VectorMatch]:
        """Return the nearest points, best first; none before `prepare`. The caller bounds the wait: `timeout_s` tells
        the backend when it may give up."""

    def upsert(self, points: Sequence[VectorPoint]) -> None:
        """Insert or replace points."""

    def delete(self, entry_ids: Sequence[str]) -> None:
        """Delete points; succeeds also for missing ids."""

    def entry_ids(self, after: str = "", until: str | None = None) -> Iterator[str]:
        """Yield the ids above `after` up to `until` (None: to the end), in ascending order."""

    def close(self) -> None:
        """Disconnect from the backend."""


def ids_between(entry_ids: Sequence[str], after: str, until: str | None) -> Sequence[str]:
    """Return those of ascending ids that are above `after`, and not above `until` unless that is None."""
    end = len(entry_ids) if until is None else bisect_right(entry_ids, until)
    return entry_ids[bisect_right(entry_ids, after) : end]


def floats(values: bytes) -> list[float]:
    """Return the numbers of float32 bytes, little-endian."""
    return array("f", values).tolist()


def _require_some(name: str, values: tuple[str, ...]) -> None:
    if isinstance(values, str) or not values:
        raise InvalidArgument.of(name, "must be one or more: nothing is kept or searched without")
    for value in values:
        _require(name, value)


def _require(name: str, value: str) -> None:
    if not value or "\0" in value or len(value) > 256:
        raise InvalidArgument.of(name, "must be 1 to 256 characters without NUL")


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False
