"""Which layers residuals have."""

import torch

from pentimento.diffusion.families.model import ControlResiduals
from services.controlnet_svc.compute.layers import are_of, layers_of

RESIDUALS = ControlResiduals((torch.zeros(1, 2, 4, 4), torch.zeros(1, 3, 2, 2)), torch.zeros(1, 3, 2, 2))


def test_residuals_have_their_own_layers() -> None:
    layers = layers_of(RESIDUALS)

    assert [layer.layer for layer in layers] == ["down_block_0", "down_block_1", "mid_block"]
    assert are_of(RESIDUALS, layers)


def test_a_layer_more_or_less_or_of_another_size_or_name_is_another() -> None:
    layers, (first, second), mid = layers_of(RESIDUALS), RESIDUALS.down_block_residuals, RESIDUALS.mid_block_residual

    for other in (
        ControlResiduals((first, second)),
        ControlResiduals((first, second, second), mid),
        ControlResiduals((first, second[:, :2]), mid),
        ControlResiduals((second, first), mid),
        ControlResiduals((first,), mid, (second,)),
    ):
        assert not are_of(other, layers)
