"""Learn a byte-level BPE vocabulary from captions, in the files of transformers' CLIPTokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import CLIPTokenizer

from pentimento.domain.errors import FailedPrecondition
from zoo.drawing.captions import natural_caption
from zoo.drawing.scenes import scene_at
from zoo.files import bad_file, replacing

MAX_TOKENS = 40
BOS, EOS = "<|startoftext|>", "<|endoftext|>"
END_OF_WORD = "</w>"
WORDS = Regex(r"""'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+""")
CAPTION_SEED = 11
CAPTION_COUNT = 20_000
MERGES = 320


def _learn_merges(captions: Iterable[str], merges: int) -> list[tuple[str, str]]:
    tokenizer = Tokenizer(BPE(end_of_word_suffix=END_OF_WORD))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(WORDS, behavior="removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    # The trainer stores words' final letters as separate symbols, which needs room for a second alphabet.
    trainer = BpeTrainer(
        vocab_size=2 * len(alphabet) + merges,
        initial_alphabet=alphabet,
        end_of_word_suffix=END_OF_WORD,
        show_progress=False,
    )
    tokenizer.train_from_iterator(captions, trainer)
    learnt = json.loads(tokenizer.to_str())["model"]["merges"]
    return [tuple(pair) for pair in learnt][:merges]


def build_tokenizer(
    folder: Path, seed: int = CAPTION_SEED, count: int = CAPTION_COUNT, merges: int = MERGES
) -> CLIPTokenizer:
    """Learn the vocabulary and write it; it has every byte, so that no word is unknown."""
    captions = (natural_caption(*scene_at(seed, index)).text for index in range(count))
    pairs = _learn_merges(captions, merges)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, *(letter + END_OF_WORD for letter in alphabet), *("".join(pair) for pair in pairs), BOS, EOS]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in pairs)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    tokenizer = CLIPTokenizer(
        vocab=str(folder / "vocab.json"),
        merges=str(folder / "merges.txt"),
        bos_token=BOS,
        eos_token=EOS,
        unk_token=EOS,
        pad_token=EOS,
        model_max_length=MAX_TOKENS,
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


def load_tokenizer(folder: Path) -> CLIPTokenizer:
    """Return the tokenizer of a folder, learning it first if needed. Raises FailedPrecondition for other files."""
    if not (folder / "vocab.json").exists():
        try:
            with replacing(folder) as partial:
                build_tokenizer(partial)
        except FailedPrecondition:
            if not (folder / "vocab.json").exists():  # else another process was quicker
                raise
    try:
        return CLIPTokenizer.from_pretrained(folder)
    except Exception as error:  # the libraries raise their parsers' errors
        reason = str(error).strip().partition("\n")[0]
        raise bad_file(folder, "the files of a CLIPTokenizer", f"they cannot be read: {reason}") from None
