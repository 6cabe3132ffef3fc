"""Validate a diffusers checkpoint directory before loading it.

Only JSON, tokenizer text and safetensors files of allowed components are ever opened. Pickles (*.bin, *.pt, *.ckpt) may
be present and are not opened. Weights are stored in their components' directories or, as model sites distribute them,
in one safetensors file next to model_index.json. `allow_list` opens such a file without a directory.
"""

import hashlib
import json
import re
import stat
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pentimento.devices.choices import WeightStorage
from pentimento.domain.errors import FailedPrecondition
from pentimento.files.file_sums import FileSums
from pentimento.files.safetensors_header import check_safetensors

_MAX_TEXT_BYTES = 64 * 1024 * 1024
TEXT_SUFFIXES = (".json", ".txt", ".model")
_MAX_SETTING = 4096
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".msgpack", ".h5")


class BadCheckpoint(FailedPrecondition):
    """Report a directory that cannot be served; the message is one line that names the file and the fault."""

    def __init__(self, message: str) -> None:
        super().__init__("BAD_CHECKPOINT", message)


@dataclass(frozen=True)
class ComponentClass:
    """Name a class by library and name, as in model_index.json."""

    library: str
    name: str


@dataclass(frozen=True)
class ComponentRules:
    """Hold the allowed classes by component: `required` ones and present `optional` ones are loaded; `unused` ones may
    be present and are ignored. `settings` are the pipeline's own numbers and switches that the family reads."""

    required: dict[str, frozenset[ComponentClass]]
    optional: dict[str, frozenset[ComponentClass]] = field(default_factory=dict)
    unused: dict[str, frozenset[ComponentClass]] = field(default_factory=dict)
    settings: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Checkpoint:
    """Describe a validated checkpoint: its pipeline class, the components to load, and the files read for them, by name
    below the directory.

    `single_file` holds the components of `held`, each under a prefix of names of the original code. `configs` are
    configurations without a file, by name. Folders of components are in `parts`, if they are not in `directory`.
    `storage` is that of denoiser and text encoders. `sums` verify the files while they are read. With
    `encoders_in_host` text encoders stay in host memory. `in_memory`: the components, if they were
    read before.
    """

    directory: Path
    pipeline_class: str
    components: dict[str, ComponentClass]
    files: Mapping[str, Path]
    settings: Mapping[str, bool | int] = field(default_factory=dict)
    single_file: Path | None = None
    held: Mapping[str, str] = field(default_factory=dict)
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    parts: Path | None = None
    storage: WeightStorage = WeightStorage.AUTO
    sums: FileSums = field(default_factory=FileSums)
    encoders_in_host: bool = False
    in_memory: Mapping[str, Any] = field(default_factory=dict)

    def stays_in_host(self, component: str) -> bool:
        """Return whether a component stays in host memory."""
        return self.encoders_in_host and component.startswith("text_encoder")

    def component_directory(self, component: str) -> Path:
        """Return the directory of a component."""
        return (self.parts or self.directory) / component

    def component_files(self, component: str) -> list[Path]:
        """Return the files that are read for a component."""
        return [path for name, path in self.files.items() if name.startswith(f"{component}/")]

    def config(self, component: str, name: str = "config.json") -> dict[str, Any]:
        """Return a component's configuration; of several files the one called `name`. Raises BadCheckpoint."""
        stored = self.configs.get(f"{component}/{name}")
        return read_json_object(self.component_directory(component) / name) if stored is None else dict(stored)


@dataclass(frozen=True)
class CheckpointDigests:
    """Hold the sha256 over all files that are read, and over each component's files."""

    model: str
    components: dict[str, str]


def open_checkpoint(directory: Path, rules: Mapping[str, ComponentRules]) -> Checkpoint:
    """Return the checkpoint after checking model_index.json against the rules of its pipeline class, and the header of
    every weight file.

    Raises BadCheckpoint naming the class, the key or the file.
    """
    path = directory / "model_index.json"
    check_inside(directory, [path])
    index = read_index(path, rules)
    allowed = rules[index["_class_name"]]
    components = allowed_components(path, index, allowed)
    files, single_file = _files(directory, components)
    names = {file.relative_to(directory).as_posix(): file for file in files}
    settings = pipeline_settings(path, index, allowed)
    return Checkpoint(directory, index["_class_name"], components, names, settings, single_file)


def read_index(path: Path, rules: Mapping[str, ComponentRules]) -> dict[str, Any]:
    """Return a model_index.json. Raises BadCheckpoint for a pipeline class without rules."""
    index = read_json_object(path)
    pipeline_class = index.get("_class_name")
    if not isinstance(pipeline_class, str) or pipeline_class not in rules:
        known = ", ".join(sorted(rules))
        raise BadCheckpoint(f"{path}: pipeline class {pipeline_class!r} is not one of {known}")
    return index


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file. Raises BadCheckpoint if the file is absent, too large or no JSON object."""
    document = read_json_text(path)
    if not isinstance(document, dict):
        raise BadCheckpoint(f"{path}: must hold a JSON object")
    return document


def read_json_text(path: Path) -> Any:
    """Return the JSON value of a file. Raises BadCheckpoint if it is absent, too large or not JSON."""
    try:
        check_text_size(path)
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadCheckpoint(f"{path}: cannot be read ({error.strerror})") from None
    except RecursionError:
        raise BadCheckpoint(f"{path}: nested too deeply") from None
    except ValueError:
        raise BadCheckpoint(f"{path}: not JSON") from None


def check_text_size(path: Path) -> None:
    """Raise BadCheckpoint if the path is no regular file or too large, OSError if it is missing."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise BadCheckpoint(f"{path}: not a file")
    if status.st_size > _MAX_TEXT_BYTES:
        raise BadCheckpoint(f"{path}: larger than {_MAX_TEXT_BYTES} bytes")


def allowed_components(path: Path, index: dict[str, Any], rules: ComponentRules) -> dict[str, ComponentClass]:
    """Return the components of an index to load. Raises BadCheckpoint unless every named component is allowed, loaded
    or not."""
    named = {name: value for name, value in index.items() if not _is_absent(name, value, rules)}
    for name, value in named.items():
        _check_component(path, name, value, {**rules.required, **rules.optional, **rules.unused})
    missing = [name for name in rules.required if name not in named]
    if missing:
        raise BadCheckpoint(f"{path}: component {missing[0]!r} is missing")
    loaded = [*rules.required, *(name for name in rules.optional if name in named)]
    return {name: ComponentClass(*named[name]) for name in loaded}


def _check_component(path: Path, name: str, value: Any, allowed: dict[str, frozenset[ComponentClass]]) -> None:
    if name not in allowed:
        raise BadCheckpoint(f"{path}: component {name!r} is not supported")
    if not (isinstance(value, list) and len(value) == 2 and all(isinstance(part, str) for part in value)):
        raise BadCheckpoint(f"{path}: component {name!r} must be [library, class]")
    if ComponentClass(*value) not in allowed[name]:
        raise BadCheckpoint(f"{path}: class {value[0]}.{value[1]} is not allowed for component {name!r}")


def _is_absent(name: str, value: Any, rules: ComponentRules) -> bool:
    """Return whether a key names no component: a key of the pipeline itself, an omitted optional component, or a switch
    (requires_safety_checker: false)."""
    is_own = name.startswith("_") or name in rules.settings
    return is_own or value is None or value == [None, None] or isinstance(value, bool)


def pipeline_settings(path: Path, index: dict[str, Any], rules: ComponentRules) -> dict[str, bool | int]:
    """Return the pipeline's own settings in an index. Raises BadCheckpoint for a number out of bounds."""
    settings = {name: index[name] for name in rules.settings if index.get(name) is not None}
    for name, value in settings.items():
        if not isinstance(value, int) or not 0 <= value <= _MAX_SETTING:
            raise BadCheckpoint(f"{path}: {name}={value!r} is not between 0 and {_MAX_SETTING}")
    return settings


def _files(directory: Path, components: dict[str, ComponentClass]) -> tuple[tuple[Path, ...], Path | None]:
    """Return all files that are read, and the single file with all weights, if there is one."""
    files = [directory / "model_index.json"]
    has_weights = False
    for name in components:
        folder = directory / name
        if not folder.is_dir():
            raise BadCheckpoint(f"{folder}: the directory of component {name!r} is missing")
        own = component_files(directory, folder)
        has_weights = has_weights or any(path.suffix == ".safetensors" for path in own)
        files += own
    single_file = None if has_weights else _single_file(directory, components)
    if single_file is not None:
        files.append(single_file)
    return tuple(files), single_file


def component_files(directory: Path, folder: Path) -> list[Path]:
    """Return the files to read of `folder`, a component's within the checkpoint `directory`: texts and weights. Raises
    BadCheckpoint naming the first invalid file."""
    if not folder.is_dir():
        raise BadCheckpoint(f"{folder}: not a directory")
    texts = sorted(path for path in folder.iterdir() if path.suffix in TEXT_SUFFIXES and path.is_file())
    # Links are checked before any file is opened.
    check_inside(directory, [*texts, *_weight_paths(folder)])
    for path in texts:
        check_text_size(path)
    weights = weight_files(folder)
    read_shard_indexes(folder)
    return [*texts, *weights]


def _single_file(directory: Path, components: Iterable[str]) -> Path | None:
    """Return the one safetensors file next to model_index.json; None if there is none. Raises BadCheckpoint if the
    components' directories hold weights: the library that reads the file would open them, pickles too."""
    check_inside(directory, _weight_paths(directory))
    files = weight_files(directory)
    if not files:
        return None
    if len(files) > 1:
        raise BadCheckpoint(f"{directory}: {len(files)} safetensors files, one must hold all weights")
    for name in components:
        for path in (directory / name).iterdir():
            if path.suffix in _WEIGHT_SUFFIXES:
                raise BadCheckpoint(f"{path}: must not be there beside {files[0].name}")
    return files[0]


def check_inside(directory: Path, files: Iterable[Path]) -> None:
    """Raise BadCheckpoint for a link that leads out of `directory`, except the links of the hub's cache and of a
    component store."""
    root = directory.resolve()
    blobs = _hub_blobs(root) or _component_blobs(root)
    for path in files:
        target = path.resolve()
        if not target.is_relative_to(root) and (blobs is None or target.parent != blobs):
            raise BadCheckpoint(f"{path}: leads out of the checkpoint")


def _hub_blobs(root: Path) -> Path | None:
    """Return the blob directory of a snapshot in the hub's cache: `models--NAME/snapshots/REVISION` links only into
    `models--NAME/blobs`. None for any other directory."""
    repository = root.parent.parent
    is_snapshot = root.parent.name == "snapshots" and repository.name.startswith("models--")
    return repository / "blobs" if is_snapshot else None


def _component_blobs(root: Path) -> Path | None:
    """Return the blob directory of a component store for its directory `models/DIGEST/NAME`; None for any other."""
    place = root.parent
    return place.parent.with_name("blobs") if place.parent.name == "models" and _SHA256.fullmatch(place.name) else None


def _weight_paths(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix == ".safetensors" and path.is_file())


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a component, checked; empty for components without weights (tokenizer,
    scheduler)."""
    files = _weight_paths(folder)
    for path in files:
        _tensor_names(path)
    return files


def _tensor_names(path: Path) -> frozenset[str]:
    try:
        return check_safetensors(path)
    except ValueError as error:
        raise BadCheckpoint(f"{path}: not a safetensors file: {error}") from None


def read_shard_indexes(folder: Path) -> dict[str, dict[str, str]]:
    """Return the shard of each tensor, by index file of `folder`. Raises BadCheckpoint unless every index names
    safetensors files of the folder that hold exactly the listed tensors."""
    paths = sorted(path for path in folder.glob("*.safetensors.index*.json") if path.is_file())
    return {path.name: _shard_map(path) for path in paths}


def _shard_map(path: Path) -> dict[str, str]:
    shards = read_json_object(path).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise BadCheckpoint(f"{path}: must map tensors to files in weight_map")
    there = {file.name: file for file in _weight_paths(path.parent)}
    for name in sorted(set(shards.values())):
        if name not in there:
            raise BadCheckpoint(f"{path}: names {name[:80]!r}, which is no safetensors file beside it")
        if {tensor for tensor, shard in shards.items() if shard == name} != _tensor_names(there[name]):
            raise BadCheckpoint(f"{path}: names other tensors than {name} holds")
    return shards


def digest_checkpoint(checkpoint: Checkpoint) -> CheckpointDigests:
    """Return the digest of all files that are read (see `digest_files`), and of each component's files."""
    texts = {name: hashlib.sha256(config_text(config)).hexdigest() for name, config in checkpoint.configs.items()}
    sums = {**_sums(checkpoint.files, checkpoint.sums), **texts}
    parts: dict[str, dict[str, str]] = {}
    for name, value in sums.items():
        component, _, rest = name.rpartition("/")
        parts.setdefault(component, {})[rest] = value
    if checkpoint.single_file is not None:
        # It does not show which component's weights changed: its digest counts for each.
        name = checkpoint.single_file.name
        for component in parts.keys() - {"", "scheduler"}:
            parts[component][f"../{name}"] = sums[name]
    return CheckpointDigests(_digest_of(sums), {name: _digest_of(part) for name, part in parts.items() if name})


def digest_directory(directory: Path) -> str:
    """Return the digest of a directory that holds one model and no other files with its suffixes.

    It serves as a worker's model digest, an embedder's encoder digest, and any model's digest in a registry. A model
    card and its images are excluded.
    """
    files = (path for path in directory.rglob("*") if path.suffix in (*TEXT_SUFFIXES, ".safetensors"))
    return digest_files(directory, [path for path in files if path.is_file()])


def digest_files(directory: Path, files: Iterable[Path], sums: FileSums | None = None) -> str:
    """Return "sha256:" and the sha256 over the lines `<relative path>\0<sha256 of the file>\n` in path order. Files in
    `sums` are not read again.

    The files of a model are its JSON, tokenizer text and safetensors.
    """
    named = {path.relative_to(directory).as_posix(): path for path in files}
    return _digest_of(_sums(named, sums or FileSums()))


def _sums(files: Mapping[str, Path], sums: FileSums) -> dict[str, str]:
    """Return every file's sha256, by name."""
    with ThreadPoolExecutor(4, thread_name_prefix="digest") as pool:
        return {name: found.sha256 for name, found in zip(files, pool.map(sums.of, files.values()), strict=True)}


def _digest_of(sums: dict[str, str]) -> str:
    lines = "".join(f"{name}\0{value}\n" for name, value in sorted(sums.items()))
    return f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"


def config_text(config: Mapping[str, Any]) -> bytes:
    """Return the bytes of a configuration without a file, which its digest is over."""
    return json.dumps(config, sort_keys=True).encode()
