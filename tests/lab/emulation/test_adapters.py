"""Test LoRAs and ControlNets of an emulated device, in virtual time."""

from collections.abc import Sequence
from random import Random

import pytest

from lab.emulation.adapter_costs import AdapterCosts
from lab.emulation.adapters import PLAIN, AttemptAdapters, DeviceAdapters
from pentimento.profiles.costs import steady
from tests.lab.emulation.device_world import World, costs

COSTS = AdapterCosts(2, load=steady(3.0), patch=steady(0.5), residual_wait=steady(0.25))
NEON, MOSAIC = AttemptAdapters((("neon", 1.0),)), AttemptAdapters((("mosaic", 1.0),))
EDGES = AttemptAdapters(controlled=True)


def device_adapters(**changes: object) -> DeviceAdapters:
    return DeviceAdapters(AdapterCosts(**{"resident_count": 2, "load": steady(3.0), **changes}), Random(1))  # type: ignore[arg-type]


def ended_at(adapters: Sequence[AttemptAdapters], of: AdapterCosts = COSTS) -> list[float | None]:
    """Return when images of ten steps end on a new device; a step of one or two images takes a second."""
    world = World(costs(1.0, 1.0), adapter_costs=of)
    images = [world.submit(10, adapters=one) for one in adapters]
    world.timers.run_until(100)
    return [image.finished_at for image in images]


def test_the_one_used_longest_ago_goes_first() -> None:
    kept = device_adapters()

    seconds = [kept.take([name], 100.0 * turn) for turn, name in enumerate("abacab")]

    assert seconds == [3.0, 3.0, 0.0, 3.0, 0.0, 3.0]
    assert (kept.resident, kept.loaded_count) == (("a", "b"), 4)


def test_take_waits_for_a_load_under_way() -> None:
    kept = device_adapters()

    assert (kept.take(["a"], 0.0), kept.take(["a", "b"], 1.0), kept.take(["a"], 2.5)) == (3.0, 3.0, 0.5)
    assert kept.loaded_count == 2


def test_settle_patches_weights_for_a_common_set() -> None:
    kept = device_adapters(patch=steady(0.5))
    neon, mosaic = NEON.loras, MOSAIC.loras

    changes = [kept.settle(sets) for sets in ([neon], [neon, neon], [neon, mosaic], [(), neon], [mosaic], [()], [()])]

    assert changes == [0.5, 0.0, 0.5, 0.0, 0.5, 0.5, 0.0]


def test_forget_drops_all_adapters() -> None:
    kept = device_adapters(patch=steady(0.5))
    kept.take(["a"], 0.0)
    kept.settle([NEON.loras])

    kept.forget()

    assert (kept.resident, kept.settle([()]), kept.take(["a"], 0.0)) == ((), 0.0, 3.0)


def test_image_waits_for_its_lora_and_patch() -> None:
    assert ended_at([PLAIN]) == pytest.approx([10.0])
    assert ended_at([NEON]) == pytest.approx([13.5])


def test_steps_without_a_lora_hide_its_load() -> None:
    late = AdapterCosts(2, load=steady(3.0), latest_start_fraction=0.2)

    assert ended_at([NEON], late) == pytest.approx([11.0])


def test_each_step_with_a_controlnet_waits_for_its_residuals() -> None:
    assert ended_at([EDGES]) == pytest.approx([12.5])


def test_image_waiting_for_a_lora_delays_no_other() -> None:
    """It joins after three seconds; then the two have different sets, which are not in the weights."""
    assert ended_at([PLAIN, NEON]) == pytest.approx([10.0, 13.5])


def test_dropping_device_waits_for_a_lora_load() -> None:
    world = World(costs(1.0), adapter_costs=COSTS, steps=False, drop_after=100.0)
    before, image = world.submit(1), world.submit(1, adapters=NEON)

    world.timers.run_until(100)

    assert (before.finished_at, image.finished_at) == (1.0, 4.5)


def test_image_stopped_during_lora_load_never_begins() -> None:
    world = World(costs(1.0), adapter_costs=COSTS)
    image = world.submit(10, adapters=NEON)

    world.device.stop(image)
    world.timers.run_until(100)

    assert (image.began_at, image.finished_at) == (None, None)
    assert image.stopped_at == 0.0
