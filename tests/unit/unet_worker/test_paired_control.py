"""What the ControlNets of a picture are for each of two workers."""

import torch

from pentimento.diffusion.controlnets import ControlSetting
from pentimento.domain.generation import ControlNetSelection
from services.unet_worker.control.paired_control import of_row
from services.unet_worker.control.remote_control import RemoteControlNet
from services.unet_worker.pairing.remote_peer import half_controlnet

EDGES = RemoteControlNet(ControlNetSelection("edges", b"png"), ControlSetting(), ("a", "b", "c"))


def test_the_peer_tries_another_replica_first_than_its_worker_does() -> None:
    assert list(half_controlnet(EDGES).addresses) == ["b", "c", "a"]


def test_each_row_has_its_own_latent_of_the_condition_and_the_image_where_there_is_none() -> None:
    rows = torch.tensor([1.0, 2.0]).view(2, 1, 1, 1)
    encoded = RemoteControlNet(EDGES.selection, EDGES.setting, EDGES.addresses, rows)

    for row, value in ((0, 1.0), (1, 2.0)):
        found = of_row((EDGES, encoded), row)
        assert found[0] is EDGES
        assert found[1].encoded is not None and found[1].encoded.flatten().tolist() == [value]
