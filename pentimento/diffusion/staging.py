"""Stage a tokenizer for its library: a directory of links to the validated and digested files, with rewritten
configurations. Its loader cannot reach any other file of the checkpoint."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pentimento.diffusion.checkpoint import Checkpoint, read_json_object
from pentimento.diffusion.component_config import TOKENIZER_KEYS, allowed_config
from pentimento.diffusion.file_layouts import CLIP_MERGES

_TOKENIZER_TEXTS = frozenset({"tokenizer.json", "vocab.json", "merges.txt", "added_tokens.json", "spiece.model"})
_TOKENIZER_CONFIGS = frozenset({"tokenizer_config.json", "special_tokens_map.json"})


@contextmanager
def staged_tokenizer(checkpoint: Checkpoint, part: str) -> Iterator[Path]:
    """Yield a directory of a tokenizer's checked files for its loader, while the context is open. Raises
    BadCheckpoint for a configuration out of bounds."""
    with TemporaryDirectory(prefix="pentimento-model-") as name:
        files, target = checkpoint.component_files(part), Path(name)
        stage_tokenizer(files, target)
        if (config := checkpoint.configs.get(f"{part}/tokenizer_config.json")) is not None:
            _write(target / "tokenizer_config.json", config)
        if CLIP_MERGES in files:
            _write(target / "vocab.json", clip_vocabulary(CLIP_MERGES.read_text(encoding="utf-8")))
        yield target


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


def _write(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document), encoding="utf-8")
