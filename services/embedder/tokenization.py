"""Turn texts into token ids, by the tokenizer file alone."""

import tempfile
from pathlib import Path

from tokenizers import Tokenizer

from pentimento.diffusion.checkpoint import BadCheckpoint, read_json_object
from pentimento.diffusion.staging import stage_tokenizer
from services.embedder.dual_encoder import DIGESTED_FILES


class TextTokenizer:
    """Longer texts are cut as CLIP cuts them: the first `max_tokens - 1` ids, then the end token."""

    def __init__(self, tokenizer: Tokenizer, max_tokens: int) -> None:
        tokenizer.no_padding()
        tokenizer.enable_truncation(max_tokens)
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        """Return at least the start and the end token, at most `max_tokens` ids."""
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def id_of(self, token: str) -> int | None:
        """Return the id of a token; None if there is none."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found


def pad_token_of(directory: Path, tokenizer: TextTokenizer) -> int:
    """Return the id of the padding token that tokenizer_config.json names. Raises BadCheckpoint."""
    path = directory / "tokenizer_config.json"
    named = read_json_object(path).get("pad_token")
    text = named.get("content") if isinstance(named, dict) else named
    found = tokenizer.id_of(text) if isinstance(text, str) else None
    if found is None:
        raise BadCheckpoint(f"{path}: pad_token must be a token of tokenizer.json, got {text!r:.40}")
    return found


def open_tokenizer(directory: Path, max_tokens: int) -> TextTokenizer:
    """Read tokenizer.json, or vocab.json and merges.txt if there is none. Raises BadCheckpoint."""
    path = directory / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path)) if path.is_file() else _converted(directory)
    except Exception as error:  # the library raises plain Exception for files it cannot read
        raise BadCheckpoint(f"{directory}: its tokenizer cannot be read ({type(error).__name__})") from None
    return TextTokenizer(tokenizer, max_tokens)


def _converted(directory: Path) -> Tokenizer:
    for name in ("vocab.json", "merges.txt"):
        # The library would continue with an empty vocabulary.
        if not (directory / name).is_file():
            raise FileNotFoundError(name)
    # Only directories of an older kind pay for this import.
    from transformers import CLIPTokenizer

    with tempfile.TemporaryDirectory() as staged:
        stage_tokenizer([directory / name for name in DIGESTED_FILES], Path(staged))
        tokenizer: Tokenizer = CLIPTokenizer.from_pretrained(staged, local_files_only=True).backend_tokenizer
    return tokenizer
