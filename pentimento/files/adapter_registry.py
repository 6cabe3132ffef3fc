"""Read the LoRAs, ControlNets, depth model and discriminators on a replica's disk from a registry of models.

    {"models": [{"name": "tiny-lora-neon", "kind": "lora", "family": "sd", "path": "tiny-lora-neon",
                 "digest": "sha256:…", "base": {"name": "tiny-heavy", "digest": "sha256:…"}, "licence": "Apache-2.0"}]}

`family` is the name that models report, or short for it (sd, sdxl, sd3). Entries of other kinds (pipelines, encoders)
are skipped. Directories are in the file's directory or below it: any other path, also through a link, is rejected. The
path of a ControlNet may be an address, s3://bucket/path.
"""

import json
import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pentimento.domain.adapters import ADAPTER_NAME_RULE, Adapter, AdapterKind, is_adapter_name, is_digest
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, NotFound
from pentimento.files.private_files import replace_file
from pentimento.files.signed_entries import TrustedEntries

logger = logging.getLogger(__name__)

# In a LoRA's directory: the steps that may run before it takes effect, as measured by `pentimento profile lora`.
LORA_BOUNDS_FILE = "lora-bounds.json"

# The kind of a model that ControlNets preprocess images with.
DEPTH_MODEL = "depth_model"
# A ControlNet's path may be an address of S3.
ADDRESS = "s3://"
_KINDS = {kind.value: kind for kind in AdapterKind}
_SHORT_FAMILIES = {"sd": "stable_diffusion", "sdxl": "stable_diffusion_xl", "sd3": "stable_diffusion_3"}
_SHOWN_LENGTH = 80


@dataclass(frozen=True)
class RegisteredAdapter:
    """Hold an adapter, and the directory of its files, or the address that they are fetched from (`source`)."""

    adapter: Adapter
    directory: Path
    source: str = ""


@dataclass(frozen=True)
class RegisteredDepthModel:
    """Hold the directory of a depth model, and the digest that its files must have."""

    directory: Path
    digest: str


def read_adapters(
    registry: Path,
    kinds: Collection[AdapterKind] = tuple(AdapterKind),
    *,
    skip_missing: bool = False,
    trusted: TrustedEntries | None = None,
) -> dict[str, RegisteredAdapter]:
    """Return the registry's adapters of `kinds` by name. With `skip_missing` adapters without a directory are logged
    and skipped. Raises NotFound without the file, FailedPrecondition if it is no registry, InvalidArgument that names
    the entry's field, and for an entry that is not signed the errors of `trusted`."""
    found: dict[str, RegisteredAdapter] = {}
    for entry, where in _served(registry, {kind.value for kind in kinds}, skip_missing, trusted):
        registered = _registered(entry, where, registry.resolve().parent)
        if registered.adapter.name in found:
            raise InvalidArgument.of(f"{where}.name", f"must be there once, {registered.adapter.name!r} is there twice")
        found[registered.adapter.name] = registered
    return found


def read_depth_model(
    registry: Path, *, skip_missing: bool = False, trusted: TrustedEntries | None = None
) -> RegisteredDepthModel | None:
    """Return the registry's depth model, None without one. Raises as `read_adapters`, and InvalidArgument for two."""
    found = None
    for entry, where in _served(registry, {DEPTH_MODEL}, skip_missing, trusted):
        if found is not None:
            raise InvalidArgument.of(f"{where}.kind", f"must be {DEPTH_MODEL} once in a registry")
        directory = _directory(_text(entry, "path", where), f"{where}.path", registry.resolve().parent)
        found = RegisteredDepthModel(directory, _digest(entry, where))
    return found


def _served(
    registry: Path, kinds: Collection[str], skip_missing: bool, trusted: TrustedEntries | None
) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the entries of `kinds`, each with its place in the file: signed ones only if there are `trusted` keys."""
    for index, entry in enumerate(_entries(registry)):
        where = f"{registry}: models[{index}]"
        if not isinstance(entry, dict):
            raise InvalidArgument.of(where, "must be an object")
        if entry.get("kind") not in kinds:
            continue
        is_local = not str(entry.get("path")).startswith(ADDRESS)
        if skip_missing and is_local and not (registry.parent / str(entry.get("path"))).exists():
            logger.warning("%s is skipped: it has no directory in %s", entry.get("name"), registry.parent)
            continue
        if trusted is not None:
            trusted.check(str(entry.get("name")), entry)
        yield entry, where


def sign_registry(registry: Path, signed: Callable[[dict[str, Any]], dict[str, Any]]) -> list[str]:
    """Replace each entry of a file by its signed form, and return their names. Raises as `read_adapters`, and
    FailedPrecondition FILE_NOT_WRITTEN."""
    entries = _entries(registry)
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise InvalidArgument.of(f"{registry}: models[{index}]", "must be an object")
    document = json.loads(registry.read_text(encoding="utf-8"))
    document["models"] = [signed(entry) for entry in entries]
    try:
        replace_file(registry, json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        raise FailedPrecondition("FILE_NOT_WRITTEN", f"{registry}: cannot be written: {error.strerror}") from None
    return [str(entry.get("name", entry.get("path", ""))) for entry in entries]


def read_discriminators(registry: Path, encoder: str = "") -> dict[str, Path]:
    """Return the directory of each cascade's first discriminator, by `LIGHT>HEAVY`; empty without the file. `encoder`:
    the suite's, by the name of its directory, "" for any: discriminators that read prompts by another one are skipped.
    Raises FailedPrecondition if the file is no registry, InvalidArgument that names the entry's field."""
    found: dict[str, Path] = {}
    for index, entry in enumerate(_entries(registry) if registry.exists() else []):
        if not isinstance(entry, dict) or entry.get("kind") != "discriminator":
            continue
        where = f"{registry}: models[{index}]"
        try:
            cascade = ">".join(entry["cascade"][role]["name"] for role in ("light", "heavy"))
        except (KeyError, TypeError):
            raise InvalidArgument.of(f"{where}.cascade", "must have a light and a heavy model with a name") from None
        read = entry.get("encoder", {})
        if not isinstance(read, dict):
            raise InvalidArgument.of(f"{where}.encoder", "must be an object with name and digest")
        if not encoder or read.get("name", encoder) == encoder:
            found.setdefault(cascade, registry.parent / _text(entry, "path", where))
    return found


def _entries(registry: Path) -> list[Any]:
    try:
        entries = json.loads(registry.read_text(encoding="utf-8"))["models"]
    except (FileNotFoundError, IsADirectoryError):
        raise NotFound("FILE_MISSING", f"{registry}: there is no such file") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise FailedPrecondition("BAD_FILE", f"{registry}: must be a registry of models") from None
    if not isinstance(entries, list):
        raise FailedPrecondition("BAD_FILE", f"{registry}: must be a registry of models")
    return entries


def _registered(entry: dict[str, Any], where: str, folder: Path) -> RegisteredAdapter:
    name = _text(entry, "name", where)
    if not is_adapter_name(name):
        raise InvalidArgument.of(f"{where}.name", f"{ADAPTER_NAME_RULE}, got {name[:_SHOWN_LENGTH]!r}")
    base = entry.get("base", {})
    if not isinstance(base, dict):
        raise InvalidArgument.of(f"{where}.base", "must be an object with name and digest")
    family = _text(entry, "family", where)
    adapter = Adapter(
        name=name,
        kind=_KINDS[entry["kind"]],
        digest=_digest(entry, where),
        family=_SHORT_FAMILIES.get(family, family),
        base_digest=_digest(base, f"{where}.base") if base else "",
        licence=_text(entry, "licence", where) if "licence" in entry else "",
    )
    path = _text(entry, "path", where)
    if path.startswith(ADDRESS) and adapter.kind is AdapterKind.CONTROLNET:
        return RegisteredAdapter(adapter, folder / adapter.name, path)
    return RegisteredAdapter(adapter, _directory(path, f"{where}.path", folder))


def _directory(path: str, where: str, folder: Path) -> Path:
    if "\0" in path:
        raise InvalidArgument.of(where, "must not hold NUL characters")
    directory = (folder / path).resolve()
    if directory == folder or not directory.is_relative_to(folder):
        raise InvalidArgument.of(where, f"must lie in {folder}, got {path[:_SHOWN_LENGTH]!r}")
    if not directory.is_dir():
        raise InvalidArgument.of(where, f"must be a directory in {folder}, got {path[:_SHOWN_LENGTH]!r}")
    return directory


def _text(entry: dict[str, Any], field: str, where: str) -> str:
    value = entry.get(field)
    if not isinstance(value, str) or not value:
        raise InvalidArgument.of(f"{where}.{field}", "must be a text, and must not be empty")
    return value


def _digest(entry: dict[str, Any], where: str) -> str:
    digest = _text(entry, "digest", where)
    if not is_digest(digest):
        raise InvalidArgument.of(f"{where}.digest", f"must be sha256:<64 hex digits>, got {digest[:_SHOWN_LENGTH]!r}")
    return digest
