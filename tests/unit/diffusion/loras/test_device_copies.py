"""What is copied between a device and its host, in large pieces. A GPU's side is in `tests/gpu/test_weights.py`."""

import pytest
import torch

from pentimento.diffusion.loras.device_copies import FactorsThere, KeptWeights
from pentimento.diffusion.loras.lora import LowRankFactors


def test_weights_are_kept_as_they_lie_and_only_once() -> None:
    linear = torch.randn(3, 5)
    convolution = torch.randn(4, 2, 3, 3).to(memory_format=torch.channels_last)
    half = torch.randn(7).half()
    kept = KeptWeights()

    kept.keep({"linear": linear, "convolution": convolution})
    linear_before = linear.clone()
    linear.zero_()
    kept.keep({"linear": linear, "half": half})

    assert torch.equal(kept.by_name["linear"], linear_before)
    assert torch.equal(kept.by_name["convolution"], convolution)
    assert kept.by_name["convolution"].stride() == convolution.stride()
    assert torch.equal(kept.by_name["half"], half) and kept.by_name["half"].dtype is torch.float16


def test_where_one_weight_cannot_be_copied_none_is_kept() -> None:
    kept = KeptWeights()

    with pytest.raises(NotImplementedError):  # it has no numbers
        kept.keep({"weight": torch.ones(3), "without numbers": torch.empty(3, device="meta")})

    assert kept.by_name == {}


def test_factors_become_matrices_of_single_precision() -> None:
    file = torch.randn(100).half()
    factors = LowRankFactors(file[10:46].view(2, 2, 3, 3), file[50:58].view(4, 2, 1, 1), alpha=1.0)

    up, down = FactorsThere(torch.device("cpu")).matrices(factors)

    assert (up.dtype, down.dtype, up.shape, down.shape) == (torch.float32, torch.float32, (4, 2), (2, 18))
    assert torch.equal(up.flatten(), file[50:58].float()) and torch.equal(down.flatten(), file[10:46].float())


def test_factors_of_one_file_go_to_another_device_in_one_copy() -> None:
    """A device without memory of its own stands in for a GPU: shapes and places are what a GPU's are."""
    file, other = torch.randn(100), torch.randn(20)
    there = FactorsThere(torch.device("meta"))

    first = there.matrices(LowRankFactors(file[:6].view(2, 3), file[6:14].view(4, 2), alpha=1.0))
    second = there.matrices(LowRankFactors(file[14:20].view(2, 3), other[:8].view(4, 2), alpha=1.0))

    memories = {tensor.untyped_storage()._cdata for tensor in (*first, *second)}
    assert len(memories) == 2
    assert (first[0].storage_offset(), first[1].storage_offset(), second[1].storage_offset()) == (6, 0, 14)
