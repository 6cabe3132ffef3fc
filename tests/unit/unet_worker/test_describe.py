"""Describe a checkpoint for the model repository, with its costs from profiles."""

from dataclasses import replace
from pathlib import Path

import pytest

from lab.fixtures.checkpoints import write_checkpoint
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.models import digest_of
from pentimento.profiles.catalogue import write_profiles
from pentimento.profiles.costs import NOTHING, BatchProfile, ModelProfile, SizeProfile
from services.unet_worker.describe import described
from services.unet_worker.settings import DescribeSettings
from tests.support.single_files import lone_file

COSTS = ModelProfile(
    *("tiny", "sha256:0", "cpu", "float32", 1, "off", 2),
    sizes=(SizeProfile(32, 32, NOTHING, NOTHING, NOTHING),),
    batches=(BatchProfile(32, 32, True, 1, (NOTHING, NOTHING)),),
)


def test_described_takes_costs_of_its_digest(tmp_path: Path) -> None:
    settings = DescribeSettings(str(write_checkpoint(tmp_path / "tiny")), name="mine")
    digest = described(settings).digest
    write_profiles(tmp_path / "costs.json", costs=[COSTS, replace(COSTS, model_digest=digest, device="cuda")])

    (cost,) = described(replace(settings, profiles=(tmp_path,))).costs

    assert (cost.device, cost.cost.model) == ("cuda", "mine")


def test_described_refuses_profiles_without_its_costs(tmp_path: Path) -> None:
    settings = DescribeSettings(str(write_checkpoint(tmp_path / "tiny")), profiles=(tmp_path / "costs.json",))
    write_profiles(tmp_path / "costs.json", costs=[COSTS])

    with pytest.raises(InvalidArgument, match="profiles: must have costs of sha256:"):
        described(settings)


def test_described_file_has_the_digest_of_its_files(tmp_path: Path) -> None:
    file = lone_file(write_checkpoint(tmp_path / "tiny", vae="kl"), tmp_path / "mine")
    (tmp_path / "mine" / "scheduler" / "scheduler_config.json").unlink()  # the published one is taken

    variant = described(DescribeSettings(str(file)))

    assert variant.name == "mine"
    assert digest_of(variant.files) == variant.digest
    assert {"mine.safetensors", "scheduler/scheduler_config.json"} < {one.path for one in variant.files}
