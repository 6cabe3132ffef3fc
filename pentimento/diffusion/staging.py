"""Stage a checkpoint for the libraries: a directory of links to the validated and digested weights and tokenizer files,
with rewritten configurations and indexes. Loaders cannot reach any other file of the checkpoint."""

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pentimento.diffusion.checkpoint import Checkpoint, read_json_object, read_shard_indexes
from pentimento.diffusion.component_config import TOKENIZER_KEYS, allowed_config

_TOKENIZER_TEXTS = frozenset({"tokenizer.json", "vocab.json", "merges.txt", "added_tokens.json", "spiece.model"})
_TOKENIZER_CONFIGS = frozenset({"tokenizer_config.json", "special_tokens_map.json"})

# Returns the configuration keys that a class takes, by its name.
KeysOf = Callable[[str], Collection[str]]


@contextmanager
def staged(checkpoint: Checkpoint, keys_of: KeysOf) -> Iterator[Path]:
    """Yield a directory of checked files for stock loaders, while the context is open. Raises BadCheckpoint for a
    configuration out of bounds."""
    with TemporaryDirectory(prefix="pentimento-model-") as name:
        root = Path(name)
        components = {part: [kind.library, kind.name] for part, kind in checkpoint.components.items()}
        _write(root / "model_index.json", {"_class_name": checkpoint.pipeline_class, **components})
        for part, kind in checkpoint.components.items():
            _stage_component(checkpoint, part, root / part, keys_of(kind.name))
        yield root


def _stage_component(checkpoint: Checkpoint, part: str, target: Path, keys: Collection[str]) -> None:
    source = checkpoint.component_directory(part)
    files = [path for path in checkpoint.files if path.parent == source]
    target.mkdir()
    if part == "scheduler":  # a pipeline builds its own scheduler, which is not used
        _write(target / "scheduler_config.json", {"_class_name": checkpoint.components[part].name})
    elif part.startswith("tokenizer"):
        stage_tokenizer(files, target)
    else:
        stage_network(source, files, target, keys)


def stage_tokenizer(files: Iterable[Path], target: Path) -> None:
    """Link into `target` the files that a tokenizer reads, and copy its checked configurations. Raises
    BadCheckpoint."""
    for path in files:
        if path.name in _TOKENIZER_TEXTS and path.is_file():
            (target / path.name).symlink_to(path.resolve())
        elif path.name in _TOKENIZER_CONFIGS and path.is_file():
            _write(target / path.name, allowed_config(path, read_json_object(path), TOKENIZER_KEYS))


def stage_network(source: Path, files: Iterable[Path], target: Path, keys: Collection[str]) -> None:
    """Link into `target` the network's `files`, all in the directory `source`, and write its configuration with only
    `keys`. Raises BadCheckpoint."""
    stored = read_json_object(source / "config.json")
    if stored.get("model_type") == "clip" and isinstance(stored.get("text_config"), dict):
        stored = {**stored["text_config"], "model_type": "clip_text_model"}  # a whole CLIP: its text tower
    _write(target / "config.json", allowed_config(source / "config.json", stored, keys))
    sizes = {}
    for path in files:
        if path.suffix == ".safetensors":
            (target / path.name).symlink_to(path.resolve())
            sizes[path.name] = path.stat().st_size
    for name, shards in read_shard_indexes(source).items():
        total = sum(sizes[shard] for shard in set(shards.values()))
        _write(target / name, {"metadata": {"total_size": total}, "weight_map": shards})


def _write(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document), encoding="utf-8")
