"""Test how an emulated device changes its model: after its images, read ahead, called off."""

from dataclasses import replace

from lab.emulation.costs import ModelCosts
from pentimento.profiles.costs import steady
from tests.lab.emulation.device_world import KEY, World, costs, done


def test_other_model_loads_after_images_and_holds_end() -> None:
    world = World(costs(1.0, 1.5, finish_s=0.5))
    world.submit(1)
    world.device.hold()

    world.device.assign(replace(costs(2.0, load_s=3.0), model="other"), 1)
    world.timers.run_until(4.0)
    assert (world.device.model, world.device.costs.model) == ("other", "model")
    world.device.release()
    world.timers.run_until(10.0)

    assert world.reports == [(0.0, "model", True), (7.0, "other", False)]


def test_model_wanted_during_load_is_loaded_after_it() -> None:
    world = World(costs(1.0))
    world.device.assign(replace(costs(1.0, load_s=3.0), model="other"), 1)
    world.timers.run_until(1.0)

    world.device.assign(costs(1.0, load_s=2.0), 1)
    world.timers.run_until(10.0)

    assert world.reports == [(0.0, "model", True), (1.0, "model", True), (5.0, "model", False)]


def staged(model: str, load_s: float = 3.0, swap_s: float = 0.5) -> ModelCosts:
    return replace(costs(1.0, load_s=load_s), model=model, swap=steady(swap_s))


def test_model_with_swap_is_read_while_the_device_takes_images() -> None:
    world = World(costs(1.0, 1.0))
    world.submit(1)
    world.device.assign(staged("other"), 1)
    world.timers.run_until(2.5)
    assert not world.device.draining

    last = world.submit(1)
    world.timers.run_until(3.2)
    assert world.device.draining and last.done is None
    world.timers.run_until(10.0)

    # Read at 3.0, the device is empty at 3.5, and the model is placed half a second later.
    assert done(last).denoised_s == 3.5
    assert world.reports == [(0.0, "model", False), (3.0, "model", True), (4.0, "other", False)]


def test_switch_of_staged_model_is_called_off_until_it_is_read() -> None:
    world = World(costs(1.0))
    world.device.assign(staged("other"), 1)
    world.timers.run_until(2.0)

    world.device.assign(costs(1.0), 1)
    world.timers.run_until(10.0)

    assert (world.device.costs.model, world.device.draining) == ("model", False)
    world.device.assign(staged("other"), 1)
    assert world.device.draining
    world.timers.run_until(10.4)
    assert world.device.costs.model == "model"
    world.timers.run_until(10.6)
    assert world.device.costs.model == "other"


def test_model_assigned_while_another_one_is_read_is_read_next() -> None:
    world = World(costs(1.0))
    world.device.assign(staged("first"), 1)
    world.timers.run_until(1.0)

    world.device.assign(staged("second", load_s=2.0), 1)
    world.timers.run_until(5.4)
    assert world.device.costs.model == "model"
    world.timers.run_until(10.0)

    assert world.reports[-1] == (5.5, "second", False)


def test_lost_device_forgets_its_read_model() -> None:
    world = World(costs(1.0))
    world.device.assign(staged("other"), 1)
    world.timers.run_until(1.0)

    world.device.lose()
    world.device.revive()
    world.timers.run_until(10.0)

    assert world.device.costs.model == "other"
    world.device.assign(staged("third"), 1)
    assert not world.device.draining


def test_waiting_switch_is_called_off() -> None:
    world = World(costs(1.0, 1.5))
    world.submit(3)
    world.timers.run_until(0.5)

    world.device.assign(replace(costs(1.0, load_s=3.0), model="other"), 1)
    world.device.assign(costs(1.0, 1.5), 1)
    world.timers.run_until(10.0)

    assert world.reports == [(0.5, "model", True), (0.5, "model", False)]
    assert world.device.limit(KEY) == 1
