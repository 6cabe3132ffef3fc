"""A sentence-transformers directory of a BERT encoder: configuration, pooling, weights (safetensors only), digest.

Read are `config.json`, `modules.json`, the pooling module's `config.json`, `sentence_bert_config.json` where it is
there, and the tokenizer. Modules that would change the vectors in a way that is not built here are refused by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from torch import Tensor

from pentimento.diffusion.checkpoint import BadCheckpoint, check_inside, digest_files, read_json_object, read_json_text
from services.embedder.checkpoint import TowerConfig
from services.embedder.encoder_files import epsilon, positive, read_weights, used_tensors

# What transformers' BertConfig takes where config.json is silent.
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
    """How the states of a text's tokens become one vector."""

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


@dataclass(frozen=True)
class SentenceCheckpoint:
    """`tensors` are float32 by transformers' names; `digest` covers every file that is read."""

    name: str
    directory: Path
    config: SentenceConfig
    tensors: Mapping[str, Tensor] = field(repr=False)
    digest: str


def open_sentence_encoder(directory: Path) -> SentenceCheckpoint:
    """Return a checked directory. Raises BadCheckpoint with one line that names the file and what is wrong."""
    texts = [directory / name for name in DIGESTED_FILES if (directory / name).is_file()]
    check_inside(directory, [*texts, *directory.glob("*.safetensors")])
    pooling_file = _pooling_file(directory)
    check_inside(directory, [pooling_file])
    config = _read_config(directory, pooling_file)
    files, tensors = read_weights(directory)
    digest = digest_files(directory, [*texts, pooling_file, *files])
    used = used_tensors(directory, expected_sentence_shapes(config), tensors)
    return SentenceCheckpoint(_name(directory), directory, config, used, digest)


def _name(directory: Path) -> str:
    """Return the directory's name, or its package's where an installed package carries it."""
    return directory.parent.name if (directory.parent / "__init__.py").is_file() else directory.name


def _pooling_file(directory: Path) -> Path:
    """Return the configuration of the one pooling module, after checking which modules there are and their order."""
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
    tower = TowerConfig(
        hidden_size=positive(path, document, "hidden_size"),
        intermediate_size=positive(path, document, "intermediate_size"),
        num_hidden_layers=positive(path, document, "num_hidden_layers"),
        num_attention_heads=positive(path, document, "num_attention_heads"),
        layer_norm_eps=epsilon(path, document),
        hidden_act=str(document["hidden_act"]),
    )
    if tower.hidden_size % tower.num_attention_heads:
        raise BadCheckpoint(f"{path}: hidden_size must be a multiple of num_attention_heads")
    _check_no_prompt(directory / "config_sentence_transformers.json")
    return SentenceConfig(
        tower=tower,
        vocab_size=positive(path, document, "vocab_size"),
        max_position_embeddings=positions,
        type_vocab_size=positive(path, document, "type_vocab_size"),
        max_tokens=_max_tokens(directory / "sentence_bert_config.json", positions),
        pooling=_pooling(pooling_file),
    )


def _check_no_prompt(path: Path) -> None:
    """Raise BadCheckpoint where the library would put a text of its own before every prompt."""
    if path.is_file() and read_json_object(path).get("default_prompt_name") is not None:
        raise BadCheckpoint(f"{path}: default_prompt_name must be null")


def _max_tokens(path: Path, positions: int) -> int:
    document = read_json_object(path) if path.is_file() else {}
    if document.get("do_lower_case"):
        raise BadCheckpoint(f"{path}: do_lower_case must be false; the tokenizer does it where it is wanted")
    if document.get("max_seq_length") is None:
        return positions
    return min(positive(path, document, "max_seq_length"), positions)


def _pooling(path: Path) -> Pooling:
    """Return the mode by its name, as newer versions of the library write it, or by the switches of older ones."""
    document = read_json_object(path)
    mode = document.get("pooling_mode")
    switches = [key.removeprefix("pooling_mode_") for key, on in document.items() if _is_switch(key) and on is True]
    names = [mode] if mode is not None else [name.removesuffix("_token").removesuffix("_tokens") for name in switches]
    if len(names) != 1 or names[0] not in tuple(Pooling):
        raise BadCheckpoint(f"{path}: the pooling mode must be mean or cls, got {names}")
    return Pooling(names[0])


def _is_switch(key: str) -> bool:
    return key.startswith("pooling_mode_")


def expected_sentence_shapes(config: SentenceConfig) -> dict[str, tuple[int, ...]]:
    """Return every tensor that is used, by transformers' name, with its shape."""
    width, inner = config.tower.hidden_size, config.tower.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config.vocab_size, width),
        "embeddings.position_embeddings.weight": (config.max_position_embeddings, width),
        "embeddings.token_type_embeddings.weight": (config.type_vocab_size, width),
        "embeddings.LayerNorm.weight": (width,),
        "embeddings.LayerNorm.bias": (width,),
    }
    linears = {f"attention.self.{name}": (width, width) for name in ("query", "key", "value")}
    linears |= {"attention.output.dense": (width, width)}
    linears |= {"intermediate.dense": (inner, width), "output.dense": (width, inner)}
    for index in range(config.tower.num_hidden_layers):
        prefix = f"encoder.layer.{index}"
        for name, shape in linears.items():
            shapes |= {f"{prefix}.{name}.weight": shape, f"{prefix}.{name}.bias": shape[:1]}
        for norm in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"{prefix}.{norm}.weight": (width,), f"{prefix}.{norm}.bias": (width,)}
    return shapes
