"""Stage a checkpoint for the libraries: a directory of links to the validated and digested weights and tokenizer files,
with rewritten configurations and indexes. Loaders cannot reach any other file of the checkpoint."""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pentimento.diffusion.checkpoint import Checkpoint, read_json_object, read_shard_indexes
from pentimento.diffusion.component_config import DINOV2_KEYS, TOKENIZER_KEYS, allowed_config
from pentimento.diffusion.file_layouts import CLIP_MERGES

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
    source, files = checkpoint.component_directory(part), checkpoint.component_files(part)
    target.mkdir()
    if part == "scheduler":  # a pipeline builds its own scheduler, which is not used
        _write(target / "scheduler_config.json", {"_class_name": checkpoint.components[part].name})
    elif part.startswith("tokenizer"):
        stage_tokenizer(files, target)
        _complete_tokenizer(checkpoint, part, target)
    else:
        _stage_config(source / "config.json", checkpoint.config(part), target, keys)
        _stage_weights(source, files, target)


def _complete_tokenizer(checkpoint: Checkpoint, part: str, target: Path) -> None:
    """Write the published configuration, and the vocabulary of CLIP's merges."""
    if (config := checkpoint.configs.get(f"{part}/tokenizer_config.json")) is not None:
        _write(target / "tokenizer_config.json", config)
    if CLIP_MERGES in checkpoint.component_files(part):
        _write(target / "vocab.json", clip_vocabulary(CLIP_MERGES.read_text(encoding="utf-8")))


def clip_vocabulary(merges: str) -> dict[str, int]:
    """Return the token numbers of CLIP's byte pair encoding (Radford et al. 2021, section 2.4) from its merges."""
    letters = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = 256 - len(letters)
    signs = [chr(code) for code in (*letters, *range(256, 256 + others))]
    pairs = [line.replace(" ", "") for line in merges.splitlines()[1:] if line]
    words = [*signs, *(sign + "</w>" for sign in signs), *pairs, "<|startoftext|>", "<|endoftext|>"]
    return {word: number for number, word in enumerate(words)}


def stage_tokenizer(files: Iterable[Path], target: Path) -> None:
    """Link into `target` the files that a tokenizer reads, and copy its checked configurations. Raises
    BadCheckpoint."""
    for path in files:
        if path == CLIP_MERGES:
            (target / "merges.txt").symlink_to(path.resolve())
        elif path.name in _TOKENIZER_TEXTS and path.is_file():
            (target / path.name).symlink_to(path.resolve())
        elif path.name in _TOKENIZER_CONFIGS and path.is_file():
            _write(target / path.name, allowed_config(path, read_json_object(path), TOKENIZER_KEYS))


def stage_network(source: Path, files: Iterable[Path], target: Path, keys: Collection[str]) -> None:
    """Link into `target` the network's `files`, all in the directory `source`, and write its configuration with only
    `keys`. Raises BadCheckpoint."""
    _stage_config(source / "config.json", read_json_object(source / "config.json"), target, keys)
    _stage_weights(source, files, target)


def _stage_config(path: Path, stored: Mapping[str, Any], target: Path, keys: Collection[str]) -> None:
    if stored.get("model_type") == "clip" and isinstance(stored.get("text_config"), dict):
        stored = {**stored["text_config"], "model_type": "clip_text_model"}  # a whole CLIP: its text tower
    if isinstance(backbone := stored.get("backbone_config"), dict):  # of a depth model
        stored = {**stored, "backbone_config": allowed_config(path, backbone, DINOV2_KEYS)}
    _write(target / "config.json", allowed_config(path, stored, keys))


def _stage_weights(source: Path, files: Iterable[Path], target: Path) -> None:
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
