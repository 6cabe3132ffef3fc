"""LoRAs with random factors, in files as diffusers itself and as kohya's trainer write them."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from pentimento.diffusion.loras import BaseLayers

# Factors by component and module: down, up.
Factors = Mapping[str, Mapping[str, tuple[Tensor, Tensor]]]

_KOHYA = {"unet": "lora_unet_", "text_encoder": "lora_te1_", "text_encoder_2": "lora_te2_"}
EVERYWHERE = ("to_q", "to_k", "to_v", "to_out.0", "conv1", "conv2", "proj_in", "q_proj", "fc1")


def random_factors(
    base: BaseLayers,
    *,
    rank: int = 3,
    seed: int = 0,
    ends: Sequence[str] = EVERYWHERE,
    components: Sequence[str] | None = None,
    size: float = 0.2,
) -> Factors:
    """Return factors for the layers of some components whose names end so, of a size that changes pictures well."""
    generator = torch.Generator().manual_seed(seed)

    def made(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        ones = tuple(1 for _ in shape[2:])
        down = torch.randn(rank, *shape[1:], generator=generator) * size / max(1, shape[1]) ** 0.5
        return down, torch.randn(shape[0], rank, *ones, generator=generator) * size

    chosen = components if components is not None else tuple(base.shapes)
    made_for = {
        component: {
            name: made(shape)
            for name, shape in base.shapes[component].items()
            if any(name == end or name.endswith("." + end) for end in ends)
        }
        for component in chosen
    }
    return {component: modules for component, modules in made_for.items() if modules}


def write_diffusers_lora(
    directory: Path, factors: Factors, alpha: float, alphas: Mapping[str, float] | None = None
) -> Path:
    """Write with the pipelines' own `save_lora_weights`, alpha and the alphas of single modules in its metadata."""
    from diffusers import StableDiffusion3Pipeline, StableDiffusionXLPipeline

    layers = {
        component: {
            f"{module}.{half}.weight": tensor
            for module, (down, up) in modules.items()
            for half, tensor in (("lora_A", down), ("lora_B", up))
        }
        for component, modules in factors.items()
    }
    denoiser = "transformer" if "transformer" in factors else "unet"
    pipeline = StableDiffusion3Pipeline if denoiser == "transformer" else StableDiffusionXLPipeline
    configs = {component: _config(modules, alpha, alphas or {}) for component, modules in factors.items()}
    pipeline.save_lora_weights(
        directory,
        **{f"{component}_lora_layers": given for component, given in layers.items()},
        **{f"{component}_lora_adapter_metadata": config for component, config in configs.items()},
    )
    return directory / "pytorch_lora_weights.safetensors"


def _config(
    modules: Mapping[str, tuple[Tensor, Tensor]], alpha: float, alphas: Mapping[str, float]
) -> dict[str, object]:
    rank = next(iter(modules.values()))[0].shape[0]
    pattern = {name: value for name, value in alphas.items() if name in modules}
    return {"r": rank, "lora_alpha": alpha, "alpha_pattern": pattern, "target_modules": sorted(modules)}


def write_kohya_lora(path: Path, factors: Factors, alpha: float, others: Mapping[str, str] | None = None) -> Path:
    """Write names with underlines and an alpha a module; `others` are those of the denoiser's modules that have another
    name in the file."""
    tensors: dict[str, Tensor] = {}
    for component, modules in factors.items():
        for module, (down, up) in modules.items():
            prefix = _KOHYA[component] + _kohya_name(component, (others or {}).get(module, module))
            tensors[f"{prefix}.lora_down.weight"] = down
            tensors[f"{prefix}.lora_up.weight"] = up
            tensors[f"{prefix}.alpha"] = torch.tensor(alpha)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    return path


def _kohya_name(component: str, module: str) -> str:
    whole = module if component == "unet" or module.startswith("text_model.") else f"text_model.{module}"
    return whole.replace(".", "_")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> Path:
    """Write a safetensors file of any names."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, dict(metadata or {}))
    return path


def with_header(path: Path, change: Callable[[dict[str, object]], None]) -> Path:
    """Change what a safetensors file's header says, and leave its tensors as they are."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    return path
