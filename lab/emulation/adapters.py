"""Keep the LoRAs of one emulated device: those in memory, the set in its weights, and the cost of changing either."""

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from random import Random

from lab.emulation.adapter_costs import AdapterCosts
from lab.emulation.cost_draws import draw

# Names with their weights, in a fixed order.
LoraSet = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class AttemptAdapters:
    """The adapters of an attempt: LoRAs with their weights, and whether it uses ControlNet residuals."""

    loras: LoraSet = ()
    controlled: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the LoRAs."""
        return tuple(name for name, _ in self.loras)


PLAIN = AttemptAdapters()


class DeviceAdapters:
    """`loaded_count`: loads so far; `waited_s`: seconds that attempts waited for loads. Nothing is drawn for attempts
    without adapters."""

    def __init__(self, costs: AdapterCosts, random: Random) -> None:
        self._costs = costs
        self._random = random
        # When each is here, on the device's clock; those used last at the end.
        self._kept: OrderedDict[str, float] = OrderedDict()
        self._in_weights: LoraSet = ()
        self.loaded_count = 0
        self.waited_s = 0.0

    @property
    def resident(self) -> tuple[str, ...]:
        """The LoRAs that need not be loaded first, those used last at the end."""
        return tuple(self._kept)

    def load_ahead(self, names: Collection[str], now_s: float) -> bool:
        """Load these LoRAs one after the other while memory has room, as workers do. Return whether any was missing."""
        room = max(self._costs.resident_count - len(self._kept), 0)
        missing = [name for name in names if name not in self._kept][:room]
        self.take(missing, now_s)
        return bool(missing)

    def take(self, names: Collection[str], now_s: float) -> float:
        """Use these LoRAs from now on, and return the seconds until all are loaded. Missing ones load one after the
        other; loads in progress count with their rest."""
        here_s = now_s
        for name in names:
            if name not in self._kept:
                self.loaded_count += 1
                here_s += draw(self._costs.load, self._random)
            self._kept[name] = self._kept.pop(name, here_s)
        until_s = max((self._kept[name] for name in names), default=now_s)
        while len(self._kept) > max(self._costs.resident_count, 1):
            self._kept.popitem(last=False)
        return max(until_s - now_s, 0.0)

    def held_up_s(self, names: Collection[str], now_s: float, step_count: int, step_s: float) -> float:
        """Use these LoRAs like `take`. Return the seconds that loading takes beyond the steps that may run before it
        (Katz, section 6), for an attempt alone in its batch."""
        may_run = int(self._costs.latest_start_fraction * step_count)
        held_up_s = max(self.take(names, now_s) - may_run * step_s, 0.0)
        self.waited_s += held_up_s
        return held_up_s

    def settle(self, sets: Iterable[LoraSet]) -> float:
        """Prepare the weights for a batch with these LoRAs, and return the seconds it takes; 0 if nothing changes. One
        common set is patched into the weights; different sets are applied per row."""
        different = set(sets)
        wanted = next(iter(different)) if len(different) == 1 else ()
        if wanted == self._in_weights:
            return 0.0
        self._in_weights = wanted
        return draw(self._costs.patch, self._random)

    def wait_s(self, batch: Iterable[AttemptAdapters]) -> float:
        """Return how long a step of this batch waits for residuals, 0 without ControlNets."""
        return self._costs.residual_wait.mean_s if any(one.controlled for one in batch) else 0.0

    def forget(self) -> None:
        """Forget everything: the device restarts."""
        self._kept.clear()
        self._in_weights = ()
