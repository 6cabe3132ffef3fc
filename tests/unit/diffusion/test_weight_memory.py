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


@pytest.mark.parametrize("storage", [WeightStorage.FULL, WeightStorage.INT8])
@pytest.mark.parametrize("fixture", ["checkpoint", "flow_checkpoint", "flux_checkpoint", "z_image_checkpoint"])
def test_needed_bytes_are_those_of_loaded_weights(
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
