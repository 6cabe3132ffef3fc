"""LoRAs, ControlNets and IP-Adapters as the suite knows them: by registry name and digest. Mirrors
pentimento.api.generation.v1.

A name is a key of a registry and nothing else. It is never joined to a path, and no two names differ by case or by
how a character is written, so that no file system takes one for another.
"""

import hashlib
import re
import unicodedata
from dataclasses import dataclass
from enum import Enum

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import ObjectReference

# An expected digest that every file has.
ANY_DIGEST = "any"
# Folders of a directory of LoRAs that hold other adapters: textual inversions, and IP-Adapters.
EMBEDDINGS_FOLDER, IP_ADAPTERS_FOLDER = "embeddings", "ip-adapters"
MAX_ADAPTER_NAME_LENGTH = 128
ADAPTER_NAME_RULE = (
    f"must be a registry name: 1 to {MAX_ADAPTER_NAME_LENGTH} lower-case letters, digits and single . _ - between them"
)
_NAME = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


# Model families that adapters can be made for, as workers name them.
ADAPTED_FAMILIES = (
    "stable_diffusion",
    "stable_diffusion_xl",
    "stable_diffusion_3",
    "flux",
    "flux_2",
    "z_image",
    "sana",
    "qwen_image",
)


class AdapterKind(Enum):
    LORA = "lora"
    CONTROLNET = "controlnet"
    IP_ADAPTER = "ip_adapter"


@dataclass(frozen=True)
class Adapter:
    """A LoRA, a ControlNet or an IP-Adapter: its weights by digest ("sha256:<hex>"), and the models that it changes: a
    family or, with `base_digest`, one model.

    `object` is its place in the object store, None where replicas have the weights in a directory of their own. For a
    LoRA, `latest_start_fraction` is the share of the schedule, 0..1, that may run before it takes effect (Katz, section
    6, bounded asynchronous loading). For a ControlNet, `depth_digest` is the digest of the depth model that its
    replicas preprocess images with, "" for none; `control_kind_count` is the number of kinds of a ControlNet-Union, the
    first of `ControlKind`, 0 for others. `signed_entry` as in `LoraUpload`.
    """

    name: str
    kind: AdapterKind
    digest: str
    family: str
    base_digest: str = ""
    licence: str = ""
    object: ObjectReference | None = None
    latest_start_fraction: float = 0.0
    depth_digest: str = ""
    control_kind_count: int = 0
    signed_entry: str = ""

    def changes(self, model_digest: str, family: str) -> bool:
        """Return whether it is made for that model."""
        return model_digest == self.base_digest if self.base_digest else family == self.family


@dataclass(frozen=True)
class RejectedAdapter:
    """A LoRA or an IP-Adapter that a worker found and cannot use with the model that it holds, with the reason and its
    message."""

    name: str
    kind: AdapterKind
    reason: str
    message: str


@dataclass(frozen=True)
class LoraUpload:
    """A LoRA as an operator uploads it: size and digest of the file as it was sent, the other fields as in
    `Adapter`. `signed_entry`: these fields with a signature, as JSON (`pentimento.files.signed_entries`); "" for
    none."""

    name: str
    family: str
    licence: str
    size_bytes: int
    digest: str
    base_digest: str = ""
    latest_start_fraction: float = 0.0
    signed_entry: str = ""


def is_adapter_name(name: str) -> bool:
    """Return whether it could be in a registry (`ADAPTER_NAME_RULE`)."""
    return len(name) <= MAX_ADAPTER_NAME_LENGTH and _NAME.fullmatch(name) is not None


def adapter_name_for(text: str) -> str:
    """Return the registry name that is nearest to a file's name: "My Style__v2 (final)" is `my-style_v2-final`. Text
    without a letter or digit of ASCII gives `adapter` and a part of its digest."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    plain = re.sub(r"[^a-z0-9._-]+", "-", plain)
    name = re.sub(r"([._-])[._-]+", r"\1", plain)[: MAX_ADAPTER_NAME_LENGTH + 1].strip("._-")
    name = name[:MAX_ADAPTER_NAME_LENGTH].strip("._-")
    return name or f"adapter-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def split_digest(field: str, given: str) -> tuple[str, str]:
    """Return what stands before `@sha256:…`, and that digest; all of it and "" where it says none. Raises
    InvalidArgument naming the field for a digest that is none."""
    where, at, digest = given.rpartition("@")
    if not at or not digest.startswith("sha256:"):
        return given, ""
    if not is_digest(digest):
        raise InvalidArgument.of(field, f"must have sha256: and 64 hexadecimal digits behind @, got {digest[:80]}")
    return where, digest


def is_digest(text: str) -> bool:
    """Return whether it is "sha256:" and 64 lower-case hexadecimal digits."""
    return _DIGEST.fullmatch(text) is not None
