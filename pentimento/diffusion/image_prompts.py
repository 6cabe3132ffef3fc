"""Read IP-Adapters (Ye et al. 2023) in their published form, and turn images into prompts of a network.

A safetensors file holds `image_proj.…`, which makes tokens of an image's encoding, and `ip_adapter.N.to_k_ip.weight`
and `to_v_ip.weight` for the network's cross-attention layers, N = 1, 3, 5 …. The image encoder is in the directory
`image_encoder` next to it.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from diffusers.loaders.unet import UNet2DConditionLoadersMixin
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import linear

from pentimento.diffusion.checkpoint import BadCheckpoint, component_files, digest_files, read_json_object
from pentimento.diffusion.families.image_prompts import CrossAttention, ImagePrompt
from pentimento.diffusion.preprocessing import ImagePreprocessing, to_pixels
from pentimento.diffusion.weights import load_network
from pentimento.domain.errors import FailedPrecondition
from pentimento.files.safetensors_header import read_header

ENCODER_FOLDER = "image_encoder"
ENCODER_CLASS = "CLIPVisionModelWithProjection"
_LAYER = re.compile(r"ip_adapter\.(\d{1,4})\.to_([kv])_ip\.weight")
_IMAGE = "image_proj."
_PLUS_NAME = re.compile(r"latents|(proj_in|proj_out|norm_out)\.(weight|bias)|layers\.[0-3]\.[01]\..*")
_LINEAR_NAME = re.compile(r"(proj|norm)\.(weight|bias)")
_MAX_TOKENS = 64
# transformers' defaults.
_USUAL_WIDTHS = {"hidden_size": 768, "projection_dim": 512}
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
    _check_layers(path, shapes, layers)
    width = _checked_width(path, image, layers[0].text_width)
    try:
        files = component_files(encoder, encoder)
        config = read_json_object(encoder / "config.json")
    except BadCheckpoint as error:
        raise BadIpAdapter(f"{path.name}: its image encoder: {error.message}") from None
    key = "hidden_size" if _is_plus(image) else "projection_dim"
    if config.get(key, _USUAL_WIDTHS[key]) != width:
        made = f"has a {key} of {str(config.get(key))[:20]}, image_proj takes {width}"
        raise BadIpAdapter(f"{path.name}: {ENCODER_FOLDER} {made}", "IP_ADAPTER_MISMATCH")
    return IpAdapterFile(path, encoder, tuple(files))


def _is_plus(image: Mapping[str, object]) -> bool:
    """Return whether `image_proj` has the plus form, a resampler (Alayrac et al. 2022)."""
    return "latents" in image


def _checked_width(path: Path, image: Mapping[str, tuple[int, ...]], text_width: int) -> int:
    """Return the width of the encoding that the tensors of `image_proj` take."""
    plus, linear = (_PLUS_NAME, "proj_in.weight", "norm_out.weight"), (_LINEAR_NAME, "proj.weight", "norm.weight")
    known, taking, norm = plus if _is_plus(image) else linear
    if others := [name for name in image if not known.fullmatch(name)]:
        message = f"{path.name}: {_IMAGE}{others[0][:80]} is of another form than the linear and the plus one"
        raise BadIpAdapter(message, "UNSUPPORTED_IP_ADAPTER")
    width, queries = image.get(taking, ()), image.get("latents", (1, 1, 1))[1:2]
    if image.get(norm) != (text_width,) or len(width) != 2 or not (1,) <= queries <= (_MAX_TOKENS,):
        message = f"{path.name}: image_proj must make 1 to {_MAX_TOKENS} tokens of {text_width} values"
        raise BadIpAdapter(message, "IP_ADAPTER_MISMATCH")
    return width[1]


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
class PromptImageEncoder:
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
        found: Tensor = self.network(self._placed(pixels)).image_embeds
        return found

    def states(self, pixels: Tensor) -> Tensor:
        """Return the states before the last layer (1, patches, width)."""
        found: Tensor = self.network(self._placed(pixels), output_hidden_states=True).hidden_states[-2]
        return found

    def _placed(self, pixels: Tensor) -> Tensor:
        weight = next(self.network.parameters())
        return pixels.to(weight.device, weight.dtype)


def load_image_encoder(directory: Path, device: torch.device, dtype: torch.dtype) -> PromptImageEncoder:
    """Return the encoder of a directory of transformers. Raises BadCheckpoint."""
    files = component_files(directory, directory)
    return PromptImageEncoder(load_network(directory, files, ENCODER_CLASS, device, dtype))


class IpAdapter:
    """Hold the weights of an IP-Adapter on the device, in the order of the network's pass. Call it from one thread."""

    def __init__(
        self,
        path: Path,
        encoder: PromptImageEncoder,
        layers: Sequence[CrossAttention],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Read a checked file onto the device. Raises BadIpAdapter for numbers that are not finite."""
        tensors = {name: tensor.to(device, dtype) for name, tensor in load_file(path).items()}
        for name, tensor in tensors.items():
            if not tensor.isfinite().all():
                raise BadIpAdapter(f"{path.name}: {name[:80]!r} has numbers that are not finite")
        self.encoder = encoder
        image = {name.removeprefix(_IMAGE): one for name, one in tensors.items() if name.startswith(_IMAGE)}
        self._is_plus, self._tokens = _is_plus(image), _projection(path, image, device, dtype)
        named = [
            (2 * layer.place + later, tensors[f"ip_adapter.{2 * number + 1}.to_{part}_ip.weight"])
            for number, layer in enumerate(layers)
            for later, part in enumerate("kv")
        ]
        self._layers = [tensor for _, tensor in sorted(named, key=lambda one: one[0])]

    @torch.inference_mode()
    def prompt(self, pixels: Tensor, scale: float, *, guided: bool) -> ImagePrompt:
        """Return the prompt of an encoder's input. The unconditional row, first if `guided`, is of an embedding of
        zeros, or in the plus form of an image of zeros, as in diffusers."""
        tokens = self._tokens(self._encoded(pixels, guided=guided))
        return ImagePrompt(torch.cat([linear(tokens, layer) for layer in self._layers], dim=-1), scale)

    def _encoded(self, pixels: Tensor, *, guided: bool) -> Tensor:
        if self._is_plus:
            images = [torch.zeros_like(pixels), pixels] if guided else [pixels]
            return torch.cat([self.encoder.states(image) for image in images])
        embedding = self.encoder.embedding(pixels)
        return torch.cat([torch.zeros_like(embedding), embedding]) if guided else embedding


def _projection(path: Path, image: dict[str, Tensor], device: torch.device, dtype: torch.dtype) -> Any:
    """Return diffusers' network of the tensors of `image_proj`. Raises BadIpAdapter if one is missing or does not
    fit the others."""
    place: Any = SimpleNamespace(device=device, dtype=dtype)  # the parts of a UNet that the method reads
    convert: Any = UNet2DConditionLoadersMixin._convert_ip_adapter_image_proj_to_diffusers
    try:
        network = convert(place, image, low_cpu_mem_usage=True)
    except (KeyError, IndexError, ValueError, RuntimeError) as error:
        words = " ".join(str(error).split())[:200]
        raise BadIpAdapter(f"{path.name}: image_proj does not load: {words}", "IP_ADAPTER_MISMATCH") from None
    if missing := [name for name, one in network.named_parameters() if one.is_meta]:
        raise BadIpAdapter(f"{path.name}: image_proj has no tensor for {missing[0]}", "IP_ADAPTER_MISMATCH")
    return network.eval().requires_grad_(False)
