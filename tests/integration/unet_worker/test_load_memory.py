"""Test the host memory of a worker's converted weights across models."""

from pathlib import Path

import pytest

from lab.fixtures.checkpoints import write_checkpoint
from pentimento.devices.choices import DtypeChoice
from pentimento.diffusion.host_memory import host_buffers
from pentimento.domain.weights import SwitchWay
from tests.integration.unet_worker.conftest import Served, serve
from tests.integration.unet_worker.test_switching import credits_where, take, until_settled


def first_weight(worker: Served) -> int:
    """Return the address of a denoiser's weight."""
    return next(worker.switch.loaded.networks["unet"].parameters()).data_ptr()


@pytest.mark.parametrize(("way", "reuses"), [(SwitchWay.UNLOAD_FIRST, True), (SwitchWay.BESIDE, False)])
async def test_converted_model_takes_the_memory_of_one_that_left_first(
    checkpoint: Path, tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch, way: SwitchWay, reuses: bool
) -> None:
    other = write_checkpoint(tmp_path / "other", prediction_type="epsilon")
    take(way, monkeypatch)
    host_buffers.cache_clear()  # buffers of other tests in this process would fit as well
    async with serve(checkpoint, directory, other_models=(other,), dtype=DtypeChoice.BFLOAT16) as worker:
        before = first_weight(worker)
        host_buffers(is_read_by_device=False).take(2**17)  # nothing refers to it: it is idle

        worker.switch.assign("other", 8)
        await credits_where(worker, served=True, model="other")
        await until_settled(worker)

        assert (first_weight(worker) == before) == reuses
        # No memory is left for a load that may never come.
        assert host_buffers(is_read_by_device=False).idle_bytes == 0
