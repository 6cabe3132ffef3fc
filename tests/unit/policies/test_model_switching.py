"""The way of a worker from one model to another."""

import pytest

from pentimento.domain.weights import SwitchWay, way_to_switch


@pytest.mark.parametrize(
    ("host_bytes", "device_bytes", "way"),
    [
        (10, 10, SwitchWay.BESIDE),
        (10, 9, SwitchWay.STAGED),
        (10, 0, SwitchWay.STAGED),
        (9, 10, SwitchWay.UNLOAD_FIRST),
        (0, 0, SwitchWay.UNLOAD_FIRST),
    ],
)
def test_way_to_switch_follows_the_free_memory(host_bytes: int, device_bytes: int, way: SwitchWay) -> None:
    assert way_to_switch(10, 10, host_bytes, device_bytes) is way
    assert way_to_switch(10, 5, 10, 5) is SwitchWay.BESIDE
    assert way_to_switch(5, 10, 9, 9) is SwitchWay.STAGED
