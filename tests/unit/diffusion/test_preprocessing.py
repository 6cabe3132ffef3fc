"""Configurations that would not fit the tower, or would resize beyond it."""

import json

import pytest

from pentimento.diffusion.checkpoint import BadCheckpoint
from pentimento.diffusion.preprocessing import read_preprocessing


@pytest.mark.parametrize(
    "document",
    [
        {"crop_size": {"height": 20, "width": 24}, "size": 24},
        {"crop_size": {"height": "wide", "width": 24}},
        {"size": {"longest_edge": 24}, "crop_size": 24},
        {"do_center_crop": False, "size": {"shortest_edge": 24}},
        {"image_mean": "none", "size": 24, "crop_size": 24},
        {"size": {"shortest_edge": 1_000_000}, "crop_size": 24},
        {"size": {"height": 24, "width": 1_000_000}, "crop_size": 24},
        {"size": 0, "crop_size": 24},
        {"resample": 9, "size": 24, "crop_size": 24},
        {"rescale_factor": float("inf"), "size": 24, "crop_size": 24},
        {"image_mean": [0.5, 0.5], "size": 24, "crop_size": 24},
        {"image_std": [0.5, 0.0, 0.5], "size": 24, "crop_size": 24},
    ],
)
def test_a_configuration_that_does_not_fit_the_tower_is_refused(tmp_path, document):
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(document))

    with pytest.raises(BadCheckpoint, match=r"preprocessor_config\.json"):
        read_preprocessing(path, 24)
