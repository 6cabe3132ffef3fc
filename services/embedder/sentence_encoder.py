"""Open a sentence-transformers directory of a BERT encoder (Reimers and Gurevych, 2019) and embed texts, equal to
sentence-transformers.

It reads `config.json`, `modules.json`, the pooling module's `config.json`, `sentence_bert_config.json` if present, and
the tokenizer. Modules that would change the vectors in a way that is not built here are refused by name. Attention
looks both ways, so the padding of a batch is masked out of it and of the mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from pentimento.diffusion.checkpoint import BadCheckpoint, check_inside, read_json_object, read_json_text
from services.embedder.tower import (
    BERT_LAYERS,
    EncoderCheckpoint,
    TowerConfig,
    affine_of,
    digested_files,
    load_checkpoint,
    open_tower,
    positive,
    read_tower,
    tower_shapes,
)

# The defaults of transformers' BertConfig.
BERT_DEFAULTS = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}
DIGESTED_FILES = (
    "config.json",
    "config_sentence_transformers.json",
    "model.safetensors.index.json",
    "modules.json",
    "sentence_bert_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
)


class Pooling(StrEnum):
    """The way to turn the states of a text's tokens into one vector."""

    MEAN = "mean"
    CLS = "cls"


@dataclass(frozen=True)
class SentenceConfig:
    """`max_tokens`: longer texts are cut, special tokens included."""

    tower: TowerConfig
    vocab_size: int
    max_position_embeddings: int
    type_vocab_size: int
    max_tokens: int
    pooling: Pooling


def open_sentence_encoder(directory: Path) -> EncoderCheckpoint[SentenceConfig]:
    """Return a validated directory. Raises BadCheckpoint with one line that names the file and the fault."""
    files = digested_files(directory, DIGESTED_FILES)
    pooling_file = _pooling_file(directory)
    check_inside(directory, [pooling_file])
    config = _read_config(directory, pooling_file)
    return load_checkpoint(directory, _name(directory), [*files, pooling_file], config, _expected_shapes(config))


def check_token_ids(checkpoint: EncoderCheckpoint[SentenceConfig], ids: Sequence[int]) -> None:
    """Raise BadCheckpoint if a text's token ids do not fit the encoder: special tokens are absent, or ids are beyond
    its vocabulary."""
    if len(ids) < 3 or max(ids) >= checkpoint.config.vocab_size:
        raise BadCheckpoint(f"{checkpoint.directory}: its tokenizer does not fit its config.json")


class SentenceEncoder:
    """Unit-length vectors of texts. Call it on one thread, under `torch.inference_mode()`."""

    def __init__(self, checkpoint: EncoderCheckpoint[SentenceConfig], device: torch.device) -> None:
        self._pooling, self._tensors, self._device = checkpoint.config.pooling, checkpoint.on(device), device
        self._tower = open_tower(self._tensors, checkpoint.config.tower, BERT_LAYERS)
        self.dimension_count = checkpoint.config.tower.hidden_size

    def embed_tokens(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Return unit vectors (batch, dimension_count) of token ids with their special tokens."""
        longest = max(map(len, texts))
        ids = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts], device=self._device)
        lengths = torch.tensor([len(text) for text in texts], device=self._device)
        is_token = torch.arange(longest, device=self._device) < lengths[:, None]
        hidden = self._tower.run(self._embedded(ids), is_token[:, None, None, :])
        return functional.normalize(self._pooled(hidden, is_token), dim=-1)

    def _embedded(self, ids: Tensor) -> Tensor:
        """Return the states (batch, length, width) of ids (batch, length). All tokens are of the first segment."""
        words = functional.embedding(ids, self._tensors["embeddings.word_embeddings.weight"])
        positions = self._tensors["embeddings.position_embeddings.weight"][: ids.shape[1]]
        segment = self._tensors["embeddings.token_type_embeddings.weight"][0]
        return self._tower.norm(words + positions + segment, affine_of(self._tensors, "embeddings.LayerNorm"))

    def _pooled(self, hidden: Tensor, is_token: Tensor) -> Tensor:
        if self._pooling is Pooling.CLS:
            return hidden[:, 0]
        weights = is_token[:, :, None].to(hidden.dtype)
        return (hidden * weights).sum(1) / weights.sum(1)


def _name(directory: Path) -> str:
    """Return the directory's name, or its package's if an installed package carries it."""
    return directory.parent.name if (directory.parent / "__init__.py").is_file() else directory.name


def _pooling_file(directory: Path) -> Path:
    """Return the configuration of the one pooling module, after checking the modules and their order."""
    path = directory / "modules.json"
    modules = read_json_text(path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise BadCheckpoint(f"{path}: must hold a list of objects")
    kinds = [str(module.get("type")).rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer", "Pooling", "Normalize"], ["Transformer", "Pooling"]):
        raise BadCheckpoint(f"{path}: modules must be Transformer, Pooling and perhaps Normalize, got {kinds}")
    if modules[0].get("path", "") != "":
        raise BadCheckpoint(f"{path}: the Transformer's path must be empty, got {modules[0].get('path')!r}")
    folder = modules[1].get("path")
    if not isinstance(folder, str) or not folder:
        raise BadCheckpoint(f"{path}: the Pooling's path must be a folder, got {folder!r}")
    return directory / folder / "config.json"


def _read_config(directory: Path, pooling_file: Path) -> SentenceConfig:
    path = directory / "config.json"
    document = {**BERT_DEFAULTS, **read_json_object(path)}
    if document.get("position_embedding_type", "absolute") != "absolute" or document.get("is_decoder"):
        raise BadCheckpoint(f"{path}: must be an encoder with absolute positions")
    positions = positive(path, document, "max_position_embeddings")
    _check_no_prompt(directory / "config_sentence_transformers.json")
    return SentenceConfig(
        tower=read_tower(path, document),
        vocab_size=positive(path, document, "vocab_size"),
        max_position_embeddings=positions,
        type_vocab_size=positive(path, document, "type_vocab_size"),
        max_tokens=_max_tokens(directory / "sentence_bert_config.json", positions),
        pooling=_pooling(pooling_file),
    )


def _check_no_prompt(path: Path) -> None:
    """Raise BadCheckpoint if the library would put another text before every prompt."""
    if path.is_file() and read_json_object(path).get("default_prompt_name") is not None:
        raise BadCheckpoint(f"{path}: default_prompt_name must be null")


def _max_tokens(path: Path, positions: int) -> int:
    document = read_json_object(path) if path.is_file() else {}
    if document.get("do_lower_case"):
        raise BadCheckpoint(f"{path}: do_lower_case must be false; the tokenizer does it if wanted")
    if document.get("max_seq_length") is None:
        return positions
    return min(positive(path, document, "max_seq_length"), positions)


def _pooling(path: Path) -> Pooling:
    """Return the mode by its name, as newer versions of the library write it, or by the switches of older ones."""
    document = read_json_object(path)
    mode = document.get("pooling_mode")
    modes = {key: on for key, on in document.items() if key.startswith("pooling_mode_")}
    switches = [key.removeprefix("pooling_mode_") for key, on in modes.items() if on is True]
    names = [mode] if mode is not None else [name.removesuffix("_token").removesuffix("_tokens") for name in switches]
    if len(names) != 1 or names[0] not in tuple(Pooling):
        raise BadCheckpoint(f"{path}: the pooling mode must be mean or cls, got {names}")
    return Pooling(names[0])


def _expected_shapes(config: SentenceConfig) -> dict[str, tuple[int, ...]]:
    """Return every tensor that is used, by transformers' name, with its shape."""
    width = config.tower.hidden_size
    return {
        "embeddings.word_embeddings.weight": (config.vocab_size, width),
        "embeddings.position_embeddings.weight": (config.max_position_embeddings, width),
        "embeddings.token_type_embeddings.weight": (config.type_vocab_size, width),
        "embeddings.LayerNorm.weight": (width,),
        "embeddings.LayerNorm.bias": (width,),
        **tower_shapes(config.tower, BERT_LAYERS),
    }
