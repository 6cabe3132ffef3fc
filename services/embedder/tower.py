"""A transformer over its weights, for all kinds of encoders: a table names the tensors of each kind.

Written out because the service needs nothing else of transformers: it starts in a third of the time, in little more
than half of the memory, and a call has none of the library's bookkeeping around it. The directory of an encoder is read
here too: numbers of config.json, weights (safetensors only), and the digest of all files read.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from safetensors.torch import load_file
from torch import Tensor, float32
from torch.nn import functional

from pentimento.diffusion.checkpoint import BadCheckpoint, check_inside, digest_files, weight_files
from pentimento.diffusion.clip_encoder import ACTIVATIONS

C = TypeVar("C")
MAX_DIMENSION = 1 << 20


@dataclass(frozen=True)
class EncoderCheckpoint(Generic[C]):
    """A validated directory. `tensors` are float32 by transformers' names; `digest` covers every file that is read."""

    name: str
    directory: Path
    config: C
    tensors: Mapping[str, Tensor] = field(repr=False)
    digest: str

    def on(self, device: torch.device) -> dict[str, Tensor]:
        """Return the tensors on a device."""
        return {name: tensor.to(device) for name, tensor in self.tensors.items()}


def digested_files(directory: Path, names: Sequence[str]) -> list[Path]:
    """Return the existing files with these names. Raises BadCheckpoint if one, or a weight file, leads out of the
    directory."""
    files = [directory / name for name in names if (directory / name).is_file()]
    check_inside(directory, [*files, *directory.glob("*.safetensors")])
    return files


def load_checkpoint(
    directory: Path,
    name: str,
    files: Sequence[Path],
    config: C,
    shapes: Mapping[str, tuple[int, ...]],
    renamed: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] = lambda tensors: tensors,
) -> EncoderCheckpoint[C]:
    """Return the checkpoint with the tensors of `shapes`, as float32; `renamed` gives them transformers' names. Raises
    BadCheckpoint, naming the first tensor that is missing or has another shape. Other tensors (position ids, the logit
    scale) are left out."""
    weights = weight_files(directory) if directory.is_dir() else []
    if not weights:
        raise BadCheckpoint(f"{directory}: holds no safetensors file")
    tensors: Mapping[str, Tensor] = {name: one for path in weights for name, one in load_file(path).items()}
    digest = digest_files(directory, [*files, *weights])
    tensors = renamed(tensors)
    for tensor, shape in shapes.items():
        if tensor not in tensors:
            raise BadCheckpoint(f"{directory}: tensor {tensor} is missing")
        if (found := tuple(tensors[tensor].shape)) != shape:
            raise BadCheckpoint(f"{directory}: tensor {tensor} must have shape {shape}, got {found}")
    return EncoderCheckpoint(name, directory, config, {each: tensors[each].to(float32) for each in shapes}, digest)


def positive(path: Path, section: Mapping[str, Any], key: str) -> int:
    """Return the whole number under `key`. Raises BadCheckpoint outside 1..MAX_DIMENSION."""
    value = section.get(key)
    if not isinstance(value, int) or not 1 <= value <= MAX_DIMENSION:
        raise BadCheckpoint(f"{path}: {key} must be between 1 and {MAX_DIMENSION}, got {value!r}")
    return value


def epsilon(path: Path, section: Mapping[str, Any]) -> float:
    """Return `layer_norm_eps`. Raises BadCheckpoint outside (0, 1)."""
    value = section.get("layer_norm_eps")
    if not isinstance(value, float) or not 0 < value < 1:
        raise BadCheckpoint(f"{path}: layer_norm_eps must be between 0 and 1, got {value!r}")
    return value


@dataclass(frozen=True)
class TowerConfig:
    """Sizes of a transformer; `hidden_act` is transformers' name."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    layer_norm_eps: float
    hidden_act: str


@dataclass(frozen=True)
class LayerNames:
    """transformers' names of the tensors of one kind. `norm_first`: a block normalises before each half, not after."""

    layers: str
    inputs: tuple[str, str, str]
    attention_out: str
    norm1: str
    expand: str
    contract: str
    norm2: str
    norm_first: bool


CLIP_LAYERS = LayerNames(
    layers="encoder.layers",
    inputs=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    attention_out="self_attn.out_proj",
    norm1="layer_norm1",
    expand="mlp.fc1",
    contract="mlp.fc2",
    norm2="layer_norm2",
    norm_first=True,
)
BERT_LAYERS = LayerNames(
    layers="encoder.layer",
    inputs=("attention.self.query", "attention.self.key", "attention.self.value"),
    attention_out="attention.output.dense",
    norm1="attention.output.LayerNorm",
    expand="intermediate.dense",
    contract="output.dense",
    norm2="output.LayerNorm",
    norm_first=False,
)


def read_tower(path: Path, section: Mapping[str, Any]) -> TowerConfig:
    """Return the sizes in a section of config.json. Raises BadCheckpoint, naming the number."""
    tower = TowerConfig(
        hidden_size=positive(path, section, "hidden_size"),
        intermediate_size=positive(path, section, "intermediate_size"),
        num_hidden_layers=positive(path, section, "num_hidden_layers"),
        num_attention_heads=positive(path, section, "num_attention_heads"),
        layer_norm_eps=epsilon(path, section),
        hidden_act=str(section["hidden_act"]),
    )
    if tower.hidden_size % tower.num_attention_heads:
        raise BadCheckpoint(f"{path}: hidden_size must be a multiple of num_attention_heads")
    return tower


def tower_shapes(config: TowerConfig, names: LayerNames, model: str = "") -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of the tower's layers; `model` is a prefix of their names."""
    width, inner = config.hidden_size, config.intermediate_size
    parts: dict[str, tuple[int, ...]] = {name: (width, width) for name in (*names.inputs, names.attention_out)}
    parts |= {names.expand: (inner, width), names.contract: (width, inner)}
    parts |= {names.norm1: (width,), names.norm2: (width,)}
    shapes: dict[str, tuple[int, ...]] = {}
    for index in range(config.num_hidden_layers):
        for part, shape in parts.items():
            prefix = f"{model}{names.layers}.{index}.{part}"
            shapes |= {f"{prefix}.weight": shape, f"{prefix}.bias": shape[:1]}
    return shapes


@dataclass(frozen=True)
class Affine:
    """Weight and bias of a linear layer or a layer norm."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class Layer:
    """One block; `attention_in` stacks query, key and value: (3 * width, width)."""

    attention_in: Affine
    attention_out: Affine
    norm1: Affine
    expand: Affine
    contract: Affine
    norm2: Affine


@dataclass(frozen=True)
class Tower:
    """The layers of a transformer; a causal one attends to earlier tokens only."""

    layers: tuple[Layer, ...]
    head_count: int
    epsilon: float
    activation: Callable[[Tensor], Tensor]
    norm_first: bool
    causal: bool

    def run(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the states (batch, length, width) of the last layer; a mask broadcasts to (batch, heads, length,
        length) and is true where attention may look."""
        for layer in self.layers:
            hidden = self._normed_first(hidden, layer, mask) if self.norm_first else self._normed(hidden, layer, mask)
        return hidden

    def norm(self, hidden: Tensor, affine: Affine) -> Tensor:
        return functional.layer_norm(hidden, affine.weight.shape, affine.weight, affine.bias, self.epsilon)

    def _normed_first(self, hidden: Tensor, layer: Layer, mask: Tensor | None) -> Tensor:
        hidden = hidden + self._attention(self.norm(hidden, layer.norm1), layer, mask)
        return hidden + self._expanded(self.norm(hidden, layer.norm2), layer)

    def _normed(self, hidden: Tensor, layer: Layer, mask: Tensor | None) -> Tensor:
        hidden = self.norm(hidden + self._attention(hidden, layer, mask), layer.norm1)
        return self.norm(hidden + self._expanded(hidden, layer), layer.norm2)

    def _expanded(self, hidden: Tensor, layer: Layer) -> Tensor:
        return linear(self.activation(linear(hidden, layer.expand)), layer.contract)

    def _attention(self, hidden: Tensor, layer: Layer, mask: Tensor | None) -> Tensor:
        batch, length, width = hidden.shape
        stacked = linear(hidden, layer.attention_in).view(batch, length, 3, self.head_count, width // self.head_count)
        query, key, value = stacked.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=self.causal)
        return linear(mixed.transpose(1, 2).reshape(batch, length, width), layer.attention_out)


def open_tower(
    tensors: Mapping[str, Tensor], config: TowerConfig, names: LayerNames, model: str = "", *, causal: bool = False
) -> Tower:
    """Return the tower with its weights. Raises BadCheckpoint for an activation that is not built here."""
    if config.hidden_act not in ACTIVATIONS:
        known = ", ".join(sorted(ACTIVATIONS))
        raise BadCheckpoint(f"config.json: hidden_act {config.hidden_act!r} is not one of {known}")
    prefixes = [f"{model}{names.layers}.{index}." for index in range(config.num_hidden_layers)]
    layers = tuple(_layer(tensors, prefix, names) for prefix in prefixes)
    activation = ACTIVATIONS[config.hidden_act]
    return Tower(layers, config.num_attention_heads, config.layer_norm_eps, activation, names.norm_first, causal)


def affine_of(tensors: Mapping[str, Tensor], name: str) -> Affine:
    """Return the layer `name` of the checkpoint."""
    return Affine(tensors[f"{name}.weight"], tensors[f"{name}.bias"])


def _layer(tensors: Mapping[str, Tensor], prefix: str, names: LayerNames) -> Layer:
    inputs = [affine_of(tensors, prefix + name) for name in names.inputs]
    return Layer(
        Affine(torch.cat([part.weight for part in inputs]), torch.cat([part.bias for part in inputs])),
        *(
            affine_of(tensors, prefix + name)
            for name in (names.attention_out, names.norm1, names.expand, names.contract, names.norm2)
        ),
    )


def linear(hidden: Tensor, affine: Affine) -> Tensor:
    return functional.linear(hidden, affine.weight, affine.bias)
