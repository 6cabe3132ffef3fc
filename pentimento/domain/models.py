"""Variants of models and cascades by name and digest, as the model repository knows them, and names from directories.
Mirrors pentimento.api.models.v1."""

import hashlib
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pentimento.domain.fleet import ModelCost

MAX_HANDOVER_PROFILE_BYTES = 2**16
# A source in the suite's object store; the prefix of the keys is behind it.
OBJECTS_SOURCE = "objects:"


@dataclass(frozen=True)
class ModelFile:
    """A file that a loader reads, by its path below the model's directory; `sha256` in hexadecimal digits. `blocks`:
    BLAKE3 of each 8 MiB; none if no store has the file."""

    path: str
    sha256: str
    size_bytes: int
    blocks: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Its name as a component."""
        return f"sha256:{self.sha256}"

    @property
    def is_stored(self) -> bool:
        """Whether the model's source has it; a package has the others."""
        return bool(self.blocks) or not self.size_bytes


def digest_of(files: Iterable[ModelFile]) -> str:
    """The digest of a model with these files, equal to `pentimento.diffusion.checkpoint.digest_files`."""
    lines = "".join(f"{file.path}\0{file.sha256}\n" for file in sorted(files, key=lambda file: file.path))
    return f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"


@dataclass(frozen=True)
class DeviceCost:
    """Cost of a model on a kind of device; an empty `device` is any."""

    device: str
    cost: ModelCost


@dataclass(frozen=True)
class EntrySignature:
    """Hold the ed25519 signature of an entry (`value`, base64), the id of its key, and the wall clock's milliseconds at
    which it was made: of two signed entries of one name the later one counts."""

    key_id: str
    signed_at_ms: int
    value: str


@dataclass(frozen=True)
class ModelVariant:
    """A model that may be planned. `digest` is over the files, as workers say it. `source`: where workers find its
    files; empty: on their own disks. With a source, requests have its `default_steps` and `default_guidance_scale`.
    `signature`: of all other fields, by the operator's key; None for none."""

    name: str
    digest: str
    family: str
    licence: str
    files: tuple[ModelFile, ...]
    costs: tuple[DeviceCost, ...] = ()
    source: str = ""
    default_steps: int = 0
    default_guidance_scale: float = 0.0
    signature: EntrySignature | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def stored_files(self) -> tuple[ModelFile, ...]:
        """The files that its source has."""
        return tuple(file for file in self.files if file.is_stored) if self.source else ()

    @property
    def without_blocks(self) -> "ModelVariant":
        """The model for lists: the hashes of a large one take 100 KB."""
        return replace(self, files=tuple(replace(file, blocks=()) for file in self.files))


@dataclass(frozen=True)
class ReuseProfile:
    """The hand-over profile that a share was read from: its file's digest, the share of quality that the next model
    keeps (0..1), and the rule that was applied."""

    file_digest: str
    alpha: float
    rule: str


@dataclass(frozen=True)
class Handover:
    """The transition between a model of a cascade and the next one.

    `discriminator` as it knows its cascade (`light>heavy`), its digest, and f(t) as points: the share of images with a
    confidence up to each threshold. `reuse_share` (0..1) of the next model's steps may be skipped where it starts from
    the previous model's image (DiffServe, section 5), as the pair was measured; 0: it starts from noise.
    `reuse_profile`: the source of the share; None where it was stated.
    """

    discriminator: str
    discriminator_digest: str
    thresholds: tuple[float, ...]
    shares: tuple[float, ...]
    reuse_share: float = 0.0
    reuse_profile: ReuseProfile | None = None


@dataclass(frozen=True)
class CascadeVariant:
    """Models, light first, and what lies between each and the next."""

    models: tuple[str, ...]
    handovers: tuple[Handover, ...]

    @property
    def name(self) -> str:
        """Its models with > between them."""
        return ">".join(self.models)


@dataclass(frozen=True)
class RegisteredModels:
    """Everything that is registered, ordered by name."""

    models: tuple[ModelVariant, ...] = ()
    cascades: tuple[CascadeVariant, ...] = ()


@dataclass(frozen=True)
class RegisteredRow:
    """A ledger's row under a kind and a name; `document` is JSON that the ledger never parses."""

    kind: str
    name: str
    digest: str
    document: str


# With a replica's number behind it, a name is the id of an instance: at most 128 letters, digits and a few signs.
MAX_MODEL_NAME_LENGTH = 64
MODEL_NAME_RULE = (
    f"must be a model's name: 1 to {MAX_MODEL_NAME_LENGTH} letters, digits and . _ @ -, "
    "which begins with a letter or digit and does not end in -"
)
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._@-]+", re.ASCII)


def derived_name(directory: str) -> str:
    """Return the name of the model in a directory of that name: the same where it is valid, else with hyphens for the
    characters that no name has. A name that would be too long or empty ends in a digest."""
    plain = unicodedata.normalize("NFKD", directory).encode("ascii", "ignore").decode()
    name = _NOT_IN_NAMES.sub("-", plain).lstrip("._@-").rstrip("-")
    if name and len(name) <= MAX_MODEL_NAME_LENGTH:
        return name
    digest = hashlib.sha256(directory.encode(errors="surrogateescape")).hexdigest()[:8]
    return f"{name[: MAX_MODEL_NAME_LENGTH - 9] or 'model'}-{digest}"


def is_model_name(name: str) -> bool:
    """Return whether a model may have the name (`MODEL_NAME_RULE`): the directory of that name gives it unchanged."""
    return derived_name(name) == name
