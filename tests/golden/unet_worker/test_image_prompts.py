"""Compare latents of requests with image prompts, in shared batches of the real service, with diffusers' pipelines with
a loaded IP-Adapter."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from lab.fixtures.checkpoints import write_checkpoint, write_ip_adapter, write_xl_checkpoint
from lab.fixtures.diffusers_reference import Case, DiffusersReference
from lab.fixtures.worker_under_test import WorkerUnderTest, await_serving, noise_image, png_of
from pentimento.clients.calls import domain_errors
from pentimento.devices.choices import DeviceChoice
from pentimento.domain.adapters import AdapterKind
from pentimento.domain.errors import InvalidArgument, NotFound
from pentimento.domain.fleet import Capability
from pentimento.domain.generation import ImagePromptSelection, Scheduler
from tests.integration.unet_worker.conftest import serve
from tests.support.torch_threads import one_thread  # noqa: F401 (a fixture of this module)

PROMPT = noise_image(40, 56)
GUIDED = Case("a red circle", "blurred", Scheduler.DDIM, seed=3, steps=4)
EULER = Case("a red circle", "", Scheduler.EULER, seed=4, steps=3)
FREE = replace(GUIDED, guidance_scale=1.0)
# The scales of each request's image prompts.
BESIDE = ((GUIDED, (1.0,)), (GUIDED, ()), (EULER, (0.4,)), (replace(GUIDED, seed=5), (0.7, -0.3)), (FREE, (0.8,)))


class PromptedByDiffusers(DiffusersReference):
    """Run diffusers' pipelines with one or two IP-Adapters, which share an image encoder."""

    def __init__(self, model: Path, files: list[Path]) -> None:
        super().__init__(model)
        self._scales: tuple[float, ...] = ()
        if not files:
            return
        pipeline = self.pipeline(GUIDED)
        names = [file.name for file in files]
        pipeline.load_ip_adapter([str(file.parent) for file in files], subfolder=[""] * len(files), weight_name=names)
        # Resize by Pillow, as the worker does; diffusers resizes by torchvision where it is installed.
        pipeline.feature_extractor = CLIPImageProcessorPil(size=32, crop_size=32)
        self._components = pipeline.components

    def prompted(self, case: Case, scales: tuple[float, ...], image: Image.Image) -> torch.Tensor:
        self._scales = scales
        return self.latents(case, image)

    def pipeline(self, case: Case) -> Any:
        pipeline = super().pipeline(case)
        if self._scales:
            pipeline.set_ip_adapter_scale(list(self._scales))
        return pipeline

    def _family_arguments(self, case: Case) -> dict[str, Any]:
        images = {"ip_adapter_image": [PROMPT] * len(self._scales)} if self._scales else {}
        return {**super()._family_arguments(case), **images}


@pytest.mark.parametrize("write", [write_checkpoint, write_xl_checkpoint])
async def test_prompted_latents_in_shared_batches_equal_diffusers(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    checkpoint = write(tmp_path / "model")
    adapters = write_ip_adapter(tmp_path / "adapters" / "ip-adapters", checkpoint)
    write_ip_adapter(tmp_path / "adapters" / "ip-adapters", checkpoint, name="other", plus=True, seed=8)
    files = [adapters / "style.safetensors", adapters / "other.safetensors"]
    image = noise_image(32, 32)

    async with serve_prompts(checkpoint, tmp_path) as served:
        worker = WorkerUnderTest(served.channel, (await await_serving(served.channel)).held)
        known = {adapter.name: adapter for adapter in served.model.adapters.known}
        selected = [
            tuple(
                ImagePromptSelection(name, png_of(PROMPT), scale, known[name].digest)
                for name, scale in zip(("style", "other"), scales, strict=False)
            )
            for _, scales in BESIDE
        ]
        ours = await asyncio.gather(
            *(worker.latents(case, image, prompts) for (case, _), prompts in zip(BESIDE, selected, strict=True))
        )
        alone = await worker.latents(GUIDED, image)

    for (case, scales), found in zip(BESIDE, ours, strict=True):
        theirs = PromptedByDiffusers(checkpoint, files[: len(scales)]).prompted(case, scales, image)
        assert float((found - theirs).abs().max()) <= 1e-4, (case, scales)
    assert float((ours[0] - alone).abs().max()) > 0.01
    assert float((ours[1] - alone).abs().max()) <= 1e-5


def serve_prompts(checkpoint: Path, folder: Path) -> Any:
    (folder / "w").mkdir(exist_ok=True)
    return serve(checkpoint, folder / "w", device=DeviceChoice.CPU, adapters_dir=folder / "adapters")


async def test_worker_reports_served_and_rejected_ip_adapters(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "model")
    adapters = write_ip_adapter(tmp_path / "adapters" / "ip-adapters" / "mine", checkpoint)
    tensors = load_file(adapters / "style.safetensors")
    broken = {
        "full": ({"image_proj.proj.3.weight": torch.zeros(16, 16)}, "UNSUPPORTED_IP_ADAPTER"),
        "wide": ({"ip_adapter.1.to_k_ip.weight": torch.zeros(16, 24)}, "IP_ADAPTER_MISMATCH"),
        "long": ({"ip_adapter.7.to_k_ip.weight": torch.zeros(16, 16)}, "IP_ADAPTER_MISMATCH"),
        "face": ({"ip_adapter.0.to_q_lora.up.weight": torch.zeros(16, 16)}, "UNSUPPORTED_IP_ADAPTER"),
        "nan": ({"image_proj.norm.bias": torch.full((16,), torch.nan)}, "BAD_IP_ADAPTER"),
        "encoder": ({"image_proj.proj.weight": torch.zeros(64, 9)}, "IP_ADAPTER_MISMATCH"),
    }
    for name, (changes, _) in broken.items():
        save_file({**tensors, **changes}, adapters / f"{name}.safetensors")
    (adapters / "cut.safetensors").write_bytes((adapters / "style.safetensors").read_bytes()[:200])

    async with serve_prompts(checkpoint, tmp_path) as served:
        held = served.model.adapters
        worker = WorkerUnderTest(served.channel, (await await_serving(served.channel)).held)
        (style,) = held.known
        asked = ImagePromptSelection("style", png_of(PROMPT), 1.0, style.digest)
        for prompt, error in (
            (replace(asked, digest="sha256:" + "0" * 64), NotFound),
            (replace(asked, image=b"no image"), InvalidArgument),
            (replace(asked, scale=float("nan")), InvalidArgument),
        ):
            with pytest.raises(error), domain_errors():
                await worker.latents(GUIDED, noise_image(32, 32), (prompt,))

        assert (style.name, style.kind, style.family) == ("style", AdapterKind.IP_ADAPTER, "stable_diffusion")
        assert Capability.IP_ADAPTER in served.model.capabilities
        wanted = {name: reason for name, (_, reason) in broken.items()} | {"cut": "BAD_IP_ADAPTER"}
        assert {one.name: one.reason for one in held.rejected} == wanted
