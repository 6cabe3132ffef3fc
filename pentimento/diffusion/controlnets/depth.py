"""Estimate the depth of an image with a model from a directory: Depth Anything, or DPT without a hybrid backbone."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from pentimento.diffusion.checkpoint import BadCheckpoint, component_files, digest_files, read_json_object
from pentimento.diffusion.component_config import allowed_config
from pentimento.diffusion.images import pixel_image
from pentimento.diffusion.weight_memory import weight_bytes
from pentimento.diffusion.weights import load_network
from pentimento.domain.errors import FailedPrecondition, InvalidArgument

CLASSES = ("DepthAnythingForDepthEstimation", "DPTForDepthEstimation")
_BACKBONE = "dinov2"
_PROCESSOR = "preprocessor_config.json"
_PROCESSOR_KEYS = frozenset(
    {"do_resize", "size", "resample", "ensure_multiple_of", "keep_aspect_ratio", "do_rescale", "rescale_factor",
     "do_normalize", "image_mean", "image_std", "do_pad", "size_divisor"}
)  # fmt: skip
# A larger input than any known model's, in pixels a side.
_MAX_SIDE_PX = 2048


@dataclass(frozen=True)
class DepthModel:
    """Hold a depth model on its device; `memory_bytes` are those of its weights. Call it from one thread at a time."""

    digest: str
    memory_bytes: int
    _network: Any
    _processor: Any

    @torch.inference_mode()
    def depth(self, pixels: Tensor) -> Tensor:
        """Return the inverse depth of pixels (1, 3, height, width) in 0..1 as a grey image of that shape, with 256
        levels from the farthest point (0) to the nearest (1), as transformers' pipeline does. An image of one depth is
        black. Raises InvalidArgument for an image that becomes too narrow for the model."""
        weight = next(self._network.parameters())
        try:
            inputs = self._processor(images=pixel_image(pixels), return_tensors="pt")["pixel_values"]
        except ValueError:
            shape = f"{pixels.shape[3]} x {pixels.shape[2]}"
            limit = f"must be edges or empty for an image of {shape} pixels, which is too narrow for the depth model"
            raise InvalidArgument.of("controlnet.preprocessor", limit) from None
        found = self._network(pixel_values=inputs.to(weight.device, weight.dtype)).predicted_depth.float()
        whole = interpolate(found[:, None], size=pixels.shape[2:], mode="bicubic", align_corners=False)
        least, most = whole.min(), whole.max()
        share = (whole - least) / (most - least) if most > least else torch.zeros_like(whole)
        levels = (share * 255.0).floor() / 255.0
        return levels.expand(-1, 3, -1, -1).cpu()


@torch.inference_mode(mode=False)
def load_depth_model(
    directory: Path, device: torch.device, dtype: torch.dtype, expected_digest: str = ""
) -> DepthModel:
    """Return the depth model of a transformers directory; `expected_digest`: empty for any. Raises BadCheckpoint with
    one line that names the fault, FailedPrecondition MODEL_DIGEST_MISMATCH for other files than expected."""
    files = component_files(directory, directory)
    class_name = _checked_class(directory / "config.json")
    network = load_network(directory, files, class_name, device, dtype)
    digest, processor = digest_files(directory, files), _processor(directory / _PROCESSOR)
    if expected_digest not in ("", digest):
        message = f"{directory}: its digest is {digest}, its entry in the registry has {expected_digest}"
        raise FailedPrecondition("MODEL_DIGEST_MISMATCH", message)
    return DepthModel(digest, weight_bytes(network), network, processor)


def depth_model_digest(directory: Path) -> str | None:
    """Return the digest of a depth model's directory; None for a directory of another class."""
    names = read_json_object(directory / "config.json").get("architectures")
    if not isinstance(names, list) or not names or names[0] not in CLASSES:
        return None
    _checked_class(directory / "config.json")
    return digest_files(directory, component_files(directory, directory))


def _checked_class(path: Path) -> str:
    """Return the class of a configuration. Raises BadCheckpoint for other classes and backbones."""
    config = read_json_object(path)
    names, backbone = config.get("architectures"), config.get("backbone_config")
    if not isinstance(names, list) or not names or names[0] not in CLASSES:
        raise BadCheckpoint(f"{path}: architectures must be one of {', '.join(CLASSES)}")
    is_known = backbone is None or (isinstance(backbone, dict) and backbone.get("model_type") == _BACKBONE)
    if config.get("is_hybrid") or not is_known:
        raise BadCheckpoint(f"{path}: the backbone must be {_BACKBONE}, or the model's own")
    return str(names[0])


def _processor(path: Path) -> Any:
    settings = allowed_config(path, read_json_object(path), _PROCESSOR_KEYS)
    size = settings.get("size")
    sides = [size.get("height"), size.get("width")] if isinstance(size, dict) else []
    if len(sides) != 2 or not all(type(side) is int and 1 <= side <= _MAX_SIDE_PX for side in sides):
        raise BadCheckpoint(f"{path}: size must be height and width of 1 to {_MAX_SIDE_PX} pixels")
    # From a submodule: the package's namespace imports every model.
    processor_class = import_module("transformers.models.dpt.image_processing_pil_dpt").DPTImageProcessorPil
    return processor_class(**settings)
