"""Read IP-Adapters (Ye et al. 2023) in their published form, and turn images into prompts of a network.

A safetensors file holds `image_proj.…`, which makes tokens of an image's embedding, and `ip_adapter.N.to_k_ip.weight`
and `to_v_ip.weight` for the network's cross-attention layers, N = 1, 3, 5 …. The image encoder is in the directory
`image_encoder` next to it.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import layer_norm, linear

from pentimento.diffusion.checkpoint import BadCheckpoint, component_files, digest_files, read_json_object
from pentimento.diffusion.families.image_prompts import CrossAttention, ImagePrompt
from pentimento.diffusion.preprocessing import ImagePreprocessing, to_pixels
from pentimento.diffusion.weights import load_network
from pentimento.domain.errors import FailedPrecondition
from pentimento.files.safetensors_header import read_header

ENCODER_FOLDER = "image_encoder"
ENCODER_CLASS = "CLIPVisionModelWithProjection"
_PROJECTION = {"proj.weight", "proj.bias", "norm.weight", "norm.bias"}
_LAYER = re.compile(r"ip_adapter\.(\d{1,4})\.to_([kv])_ip\.weight")
_IMAGE = "image_proj."
MAX_TOKENS = 64
# diffusers' layer norm of the tokens.
_EPSILON = 1e-5
_FLOATS = ("F32", "F16", "BF16")


class BadIpAdapter(FailedPrecondition):
    """Report an IP-Adapter that cannot be used; the message is one line that names the file and the fault."""

    def __init__(self, message: str, reason: str = "BAD_IP_ADAPTER") -> None:
        super().__init__(reason, message)


@dataclass(frozen=True)
class IpAdapterFile:
    """Describe a valid file, the directory of its image encoder, and that directory's files."""

    path: Path
    encoder: Path
    encoder_files: tuple[Path, ...]

    def digest(self, encoder_digest: str) -> str:
        """Return the digest of file and encoder together: both change what an image says."""
        own = digest_files(self.path.parent, [self.path])
        return "sha256:" + hashlib.sha256(f"{own} {encoder_digest}".encode()).hexdigest()

    def encoder_digest(self) -> str:
        """Return the digest of the encoder's files, which takes seconds."""
        return digest_files(self.encoder, self.encoder_files)


def check_ip_adapter(path: Path, layers: Sequence[CrossAttention]) -> IpAdapterFile:
    """Return the description of a file for a network with these cross-attention layers, by the headers alone. Raises
    BadIpAdapter."""
    encoder = path.parent / ENCODER_FOLDER
    shapes = _shapes(path)
    image = {name.removeprefix(_IMAGE): shape for name, shape in shapes.items() if name.startswith(_IMAGE)}
    if image.keys() != _PROJECTION:
        names = ", ".join(sorted(image)[:4]) or "none"
        limit = "must have proj and norm alone: plus, full-face and FaceID forms are not supported"
        raise BadIpAdapter(f"{path.name}: image_proj {limit}, got {names[:200]}", "UNSUPPORTED_IP_ADAPTER")
    _check_layers(path, shapes, layers)
    text_width = layers[0].text_width
    token_count, rest = divmod(image["proj.weight"][0], text_width)
    wanted = {"proj.bias": (image["proj.weight"][0],), "norm.weight": (text_width,), "norm.bias": (text_width,)}
    for name, shape in wanted.items():
        if image[name] != shape:
            _mismatch(path, f"{_IMAGE}{name}", shape, image[name])
    if rest or not 1 <= token_count <= MAX_TOKENS:
        raise BadIpAdapter(f"{path.name}: must make 1 to {MAX_TOKENS} tokens of {text_width} values")
    try:
        files = component_files(encoder, encoder)
        width = read_json_object(encoder / "config.json").get("projection_dim", 512)
    except BadCheckpoint as error:
        raise BadIpAdapter(f"{path.name}: its image encoder: {error.message}") from None
    if width != image["proj.weight"][1]:
        made = f"makes {str(width)[:20]} values, image_proj takes {image['proj.weight'][1]}"
        raise BadIpAdapter(f"{path.name}: {ENCODER_FOLDER} {made}", "IP_ADAPTER_MISMATCH")
    return IpAdapterFile(path, encoder, tuple(files))


def _check_layers(path: Path, shapes: dict[str, tuple[int, ...]], layers: Sequence[CrossAttention]) -> None:
    if not layers:
        raise BadIpAdapter(f"{path.name}: the model takes no image prompts", "IP_ADAPTER_MISMATCH")
    found = {name for name in shapes if not name.startswith(_IMAGE)}
    wanted = {
        f"ip_adapter.{2 * number + 1}.to_{part}_ip.weight": (layer.key_width, layer.text_width)
        for number, layer in enumerate(layers)
        for part in "kv"
    }
    if others := sorted(found - wanted.keys()):
        of = "another model's" if all(map(_LAYER.fullmatch, others)) else "not supported"
        reason = "IP_ADAPTER_MISMATCH" if of != "not supported" else "UNSUPPORTED_IP_ADAPTER"
        raise BadIpAdapter(f"{path.name}: {others[0][:80]!r} is {of}", reason)
    for name, shape in wanted.items():
        if shapes.get(name) != shape:
            _mismatch(path, name, shape, shapes.get(name))


def _mismatch(path: Path, name: str, wanted: tuple[int, ...], got: tuple[int, ...] | None) -> None:
    shown = "none" if got is None else str(list(got))
    message = f"{path.name}: {name} must be {list(wanted)} for this model, got {shown}"
    raise BadIpAdapter(message, "IP_ADAPTER_MISMATCH")


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    try:
        tensors = read_header(path).tensors
    except (OSError, ValueError) as error:
        raise BadIpAdapter(f"{path.name}: {error}") from None
    for name, tensor in tensors.items():
        if tensor.dtype not in _FLOATS:
            raise BadIpAdapter(f"{path.name}: {name[:80]!r} must be of {', '.join(_FLOATS)}, got {tensor.dtype}")
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


@dataclass(frozen=True)
class ImageEncoder:
    """Hold a CLIP vision tower with its projection. Call it from one thread."""

    network: Any

    @cached_property
    def steps(self) -> ImagePreprocessing:
        """Return the steps that diffusers' pipelines take for this encoder."""
        side = int(self.network.config.image_size)
        return ImagePreprocessing(resize=side, crop=(side, side))

    def pixels(self, image: Image.Image) -> Tensor:
        """Return an RGB image as the network's input (1, 3, height, width), on any thread."""
        return torch.from_numpy(np.ascontiguousarray(to_pixels(image, self.steps)))[None]

    def embedding(self, pixels: Tensor) -> Tensor:
        """Return the projected embedding (1, width)."""
        weight = next(self.network.parameters())
        found: Tensor = self.network(pixels.to(weight.device, weight.dtype)).image_embeds
        return found


def load_image_encoder(directory: Path, device: torch.device, dtype: torch.dtype) -> ImageEncoder:
    """Return the encoder of a directory of transformers. Raises BadCheckpoint."""
    files = component_files(directory, directory)
    return ImageEncoder(load_network(directory, files, ENCODER_CLASS, device, dtype))


class IpAdapter:
    """Hold the weights of an IP-Adapter on the device, in the order of the network's pass. Call it from one thread."""

    def __init__(
        self,
        path: Path,
        encoder: ImageEncoder,
        layers: Sequence[CrossAttention],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Read a checked file onto the device."""
        tensors = {name: tensor.to(device, dtype) for name, tensor in load_file(path).items()}
        self.encoder = encoder
        self._projection = {name: tensors[f"{_IMAGE}{name}"] for name in _PROJECTION}
        named = [
            (2 * layer.place + later, tensors[f"ip_adapter.{2 * number + 1}.to_{part}_ip.weight"])
            for number, layer in enumerate(layers)
            for later, part in enumerate("kv")
        ]
        self._layers = [tensor for _, tensor in sorted(named, key=lambda one: one[0])]

    @torch.inference_mode()
    def prompt(self, pixels: Tensor, scale: float, *, guided: bool) -> ImagePrompt:
        """Return the prompt of an encoder's input. The unconditional row, first if `guided`, is of an embedding of
        zeros, as in diffusers."""
        embedding = self.encoder.embedding(pixels)
        rows = torch.cat([torch.zeros_like(embedding), embedding]) if guided else embedding
        parts = self._projection
        width = parts["norm.weight"].shape[0]
        tokens = linear(rows, parts["proj.weight"], parts["proj.bias"]).reshape(len(rows), -1, width)
        tokens = layer_norm(tokens, (width,), parts["norm.weight"], parts["norm.bias"], _EPSILON)
        return ImagePrompt(torch.cat([linear(tokens, layer) for layer in self._layers], dim=-1), scale)
