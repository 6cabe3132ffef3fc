"""Inputs of an emulated device: attempts, settings, a clock with timers, a listener."""

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
    """One attempt on a device; `owner` is its caller's handle. Images with one `key` share steps; `left` counts the
    remaining denoising steps. Times are seconds on the device's clock: arrival, begin and end of preparation, end of
    the last step; above 0, `ready_s` is the time its LoRAs are loaded. `finish_s` is the time for decoding and
    encoding, `device_s` the device time used until then."""

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
    """Receives the events of a device when they happen; must not block."""

    def job_began(self, device: "EmulatedDevice[Owner]", job: EmulatedJob[Owner]) -> None: ...

    def job_yielded(self, device: "EmulatedDevice[Owner]", job: EmulatedJob[Owner]) -> None:
        """Its place is about to be free."""

    def job_finished(self, device: "EmulatedDevice[Owner]", job: EmulatedJob[Owner]) -> None: ...

    def job_stopped(self, device: "EmulatedDevice[Owner]", job: EmulatedJob[Owner]) -> None: ...

    def job_dropped(self, device: "EmulatedDevice[Owner]", job: EmulatedJob[Owner]) -> None:
        """Its turn came too late for its deadline."""

    def batch_stepped(self, batch: Sequence[EmulatedJob[Owner]], seconds: float, late_s: float) -> None:
        """A batch took a step of `seconds`, noticed `late_s` after its end. Only with `each_step`."""

    def device_reports(self, device: "EmulatedDevice[Owner]") -> None:
        """It holds another model, or takes another number of attempts."""


@dataclass(frozen=True)
class DeviceSettings:
    """Settings of a device. `steps`: attempts join and leave at any step; otherwise whole requests are batched. A
    device holds `credit_batches` batches of attempts; None as a worker does: one batch, and one more attempt for
    each image about to end. `aging_limit_s` as in the engine. `drop_after`: drop attempts that would end later than
    that many SLOs after their arrival (DiffServe's workers, with queues of their own); None: never. `each_step`:
    report each step to the listener."""

    steps: bool = True
    preempt: bool = True
    credit_batches: int | None = None
    aging_limit_s: float = 30.0
    drop_after: float | None = None
    each_step: bool = False
