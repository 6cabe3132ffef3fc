"""Memory of weights before a model is loaded, and of the loaded one."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lab.fixtures.checkpoints import write_checkpoint
from pentimento.devices.choices import WeightStorage
from pentimento.diffusion.allow_list import check_checkpoint
from pentimento.diffusion.families import load_model
from pentimento.diffusion.weight_memory import needed_bytes
from tests.support.single_files import merge_weights

CPU = torch.device("cpu")
# SDXL's fixture: 514 tokens of 24 values in the second text encoder.
LARGEST_LAYER = 514 * 24 * 4


@pytest.mark.parametrize("storage", [WeightStorage.FULL, WeightStorage.INT8])
@pytest.mark.parametrize(
    "fixture",
    ["checkpoint", "flow_checkpoint", "flux_checkpoint", "klein_checkpoint", "flux_2_checkpoint", "z_image_checkpoint"],
)
def test_needed_bytes_equal_loaded_weights(
    fixture: str, storage: WeightStorage, request: pytest.FixtureRequest
) -> None:
    directory: Path = request.getfixturevalue(fixture)

    needed = needed_bytes(replace(check_checkpoint(directory), storage=storage), torch.float32)
    weights = load_model(directory, CPU, torch.float32, storage).weights

    # Scales, and layers that are never packed, weigh more in tiny networks than in real ones.
    assert needed == pytest.approx(
        sum(one.size_bytes for one in weights), rel=0.01 if storage is not WeightStorage.INT8 else 0.35
    )
    assert {"vae", "text_encoder"} <= {one.component for one in weights}
    assert {one.precision for one in weights if one.component == "vae"} == {"float32"}


def test_needed_bytes_of_single_file_and_half_precision_agree(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model", vae="kl")
    whole = needed_bytes(check_checkpoint(directory), torch.float32)

    merged = check_checkpoint(merge_weights(directory))

    assert needed_bytes(merged, torch.float32) == whole
    assert needed_bytes(merged, torch.float16) == whole / 2


def test_needed_bytes_of_encoders_in_host_memory_are_their_largest_layer(xl_checkpoint: Path) -> None:
    checkpoint = check_checkpoint(xl_checkpoint)
    on_device, in_host = (
        needed_bytes(replace(checkpoint, encoders_in_host=moved), torch.float32) for moved in (False, True)
    )

    model = load_model(xl_checkpoint, CPU, torch.float32, encoders_in_host=True)

    assert {one.component for one in model.weights if one.in_host_memory} == {"text_encoder", "text_encoder_2"}
    assert in_host - LARGEST_LAYER == sum(one.device_bytes for one in model.weights)
    assert on_device == sum(one.size_bytes for one in model.weights)
