"""Load models on an emulated device, the next one into host memory while the device generates."""

from collections.abc import Callable
from random import Random

from lab.emulation.cost_draws import draw
from lab.emulation.costs import ModelCosts
from lab.emulation.jobs import Timers


class Staging:
    """Stage models that have a `swap`; others load on the empty device. One model is read at a time, and the last one
    is kept. `ended` is called after each read."""

    def __init__(self, timers: Timers, random: Random, ended: Callable[[], None]) -> None:
        self._timers = timers
        self._random = random
        self._ended = ended
        self._staged = ""
        self._reads = False
        # Counts the processes that bore this name: what an earlier one was loading is lost.
        self._version = 0

    def has(self, costs: ModelCosts) -> bool:
        """Return whether the model can be placed on the device as soon as that is empty."""
        return costs.swap is None or costs.model == self._staged

    def begin(self, costs: ModelCosts) -> None:
        """Read the model unless it is here, or another one is being read."""
        if not self.has(costs) and not self._reads:
            self._reads = True
            at_s = self._timers.now + draw(costs.load, self._random)
            self._timers.at(at_s, self._end, (self._version, costs.model))

    def place(self, costs: ModelCosts, placed: Callable[[], None]) -> None:
        """Call `placed` once the model is on the empty device."""
        at_s = self._timers.now + draw(costs.swap or costs.load, self._random)
        self._timers.at(at_s, self._placed, (self._version, placed))

    def forget(self) -> None:
        """Forget everything: the process is gone."""
        self._staged, self._reads = "", False
        self._version += 1

    def _end(self, read: tuple[int, str]) -> None:
        version, model = read
        if version == self._version:
            self._staged, self._reads = model, False
            self._ended()

    def _placed(self, one: tuple[int, Callable[[], None]]) -> None:
        version, placed = one
        if version == self._version:
            placed()
