"""What an emulated device is given, and who hears of it: attempts, settings, a clock with timers, a listener."""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from lab.emulation.adapters import PLAIN, AttemptAdapters
from pentimento.policies.step_batching import Urgency

if TYPE_CHECKING:
    from lab.emulation.device import EmulatedDevice

Owner = TypeVar("Owner", bound=Hashable)


class Timers(Protocol):
    """A clock in seconds, and actions that are called at a time, or right after where that is over."""

    @property
    def now(self) -> float: ...

    def at(self, time_s: float, action: Callable[[Any], None], argument: Any = None) -> object: ...


@dataclass(slots=True, eq=False)
class EmulatedJob(Generic[Owner]):
    """One attempt on a device, known to whoever started it as `owner`. Pictures of one `key` share steps; `left` are
    denoising steps to come. Times in seconds on the device's own clock: it came, its preparation began and ended,
    its last step ended; above 0, `ready_s` is when its LoRAs will be here. It took `finish_s` to decode and encode, and
    had `device_s` of the device's time until then."""

    owner: Owner
    key: Hashable
    left: int
    urgency: Urgency
    arrived_s: float
    drop_at_s: float = math.inf
    adapters: AttemptAdapters = PLAIN
    ready_s: float = 0.0
    running: bool = False
    stopped: bool = False
    yielded: bool = False
    began_s: float = 0.0
    prepared_s: float = 0.0
    denoised_s: float = 0.0
    finish_s: float = 0.0
    device_s: float = 0.0


class DeviceListener(Protocol[Owner]):
    """Who hears of a device. Called at the time at which it happens; must not block."""

    def job_began(self, device: "EmulatedDevice[Owner]", job: EmulatedJob[Owner]) -> None: ...

    def job_yielded(self, device: "EmulatedDevice[Owner]", job: EmulatedJob[Owner]) -> None:
        """Its place is about to be free."""
        ...

    def job_finished(self, device: "EmulatedDevice[Owner]", job: EmulatedJob[Owner]) -> None: ...

    def job_stopped(self, device: "EmulatedDevice[Owner]", job: EmulatedJob[Owner]) -> None: ...

    def job_dropped(self, device: "EmulatedDevice[Owner]", job: EmulatedJob[Owner]) -> None:
        """Its turn came too late for its deadline."""
        ...

    def batch_stepped(self, batch: Sequence[EmulatedJob[Owner]], seconds: float, late_s: float) -> None:
        """These took a step of so many seconds; its end was noticed so much too late. With `each_step` alone."""
        ...

    def device_reports(self, device: "EmulatedDevice[Owner]") -> None:
        """It holds another model, or takes another number of attempts."""
        ...


@dataclass(frozen=True)
class DeviceSettings:
    """`steps`: join and leave at any step; otherwise whole requests are batched. A device holds `credit_batches`
    batches of attempts; where that is None as a worker does, a batch, and for each picture that is about to end another
    one. `aging_limit_s` as in the engine.
    `drop_after`: what the batch that is about to begin would end later than so many SLOs after it came is given up
    (DiffServe's workers, whose queues are their own); None for never.
    `each_step`: the listener hears of each step."""

    steps: bool = True
    preempt: bool = True
    credit_batches: int | None = None
    aging_limit_s: float = 30.0
    drop_after: float | None = None
    each_step: bool = False
