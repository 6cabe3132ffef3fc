"""Simulate an emulated device with its own clock, and images for it."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lab.emulation.adapter_costs import NO_ADAPTER_COSTS, AdapterCosts
from lab.emulation.adapters import PLAIN, AttemptAdapters
from lab.emulation.costs import ModelCosts
from lab.emulation.device import EmulatedDevice
from lab.emulation.jobs import DeviceSettings, EmulatedJob
from lab.emulation.speed import STEADY, SpeedCourse
from pentimento.profiles.costs import Cost
from tests.lab.emulation.virtual_time import VirtualTimers

KEY = (64, 64, True)
OTHER = (128, 64, True)


def costs(
    *steps_s: float, prepare_s: float = 0.0, finish_s: float = 0.0, load_s: float = 0.0, variance_s2: float = 0.0
) -> ModelCosts:
    """Seconds of a step by batch size."""
    table = tuple(Cost(seconds, variance_s2, 5) for seconds in steps_s)
    once = [Cost(seconds, 0.0, 1) for seconds in (prepare_s, finish_s, load_s)]
    return ModelCosts("model", 10, table, *once, sizes={KEY: table, OTHER: table})


@dataclass(eq=False)
class Image:
    """`left`: steps that remain after each step."""

    number: int
    left: list[int] = field(default_factory=list)
    began_at: float | None = None
    yielded_at: list[float] = field(default_factory=list)
    finished_at: float | None = None
    stopped_at: float | None = None
    dropped: bool = False
    done: "EmulatedJob[Image] | None" = None


class World:
    """Hold a device, and what it reports."""

    def __init__(
        self,
        device: ModelCosts,
        *,
        late_s: float = 0.0,
        seed: int = 1,
        speed_changes: SpeedCourse = STEADY,
        each_step: bool = True,
        adapter_costs: AdapterCosts = NO_ADAPTER_COSTS,
        **options: Any,
    ) -> None:
        self.timers = VirtualTimers(late_s)
        self.batches: list[int] = []
        self.seconds: list[float] = []
        self.late: list[float] = []
        self.reports: list[tuple[float, str, bool]] = []
        self.pictures: list[Image] = []
        # Steps that each image skips after its first one.
        self.left_out = 0
        self.device: EmulatedDevice[Image] = EmulatedDevice(
            "worker",
            "kind",
            self.timers,
            self,
            random.Random(seed),
            DeviceSettings(each_step=each_step, **options),
            device,
            8,
            speed_changes,
            adapter_costs,
        )

    def submit(
        self, steps: int, deadline: float | None = None, key: object = KEY, adapters: AttemptAdapters = PLAIN
    ) -> Image:
        image = Image(len(self.pictures))
        self.pictures.append(image)
        self.device.start(image, steps, deadline, key=key, adapters=adapters)
        return image

    def job_began(self, device: object, job: EmulatedJob[Image]) -> None:
        job.owner.began_at = self.timers.now

    def job_yielded(self, device: object, job: EmulatedJob[Image]) -> None:
        job.owner.yielded_at.append(self.timers.now)

    def job_finished(self, device: object, job: EmulatedJob[Image]) -> None:
        assert job.owner.done is None
        job.owner.done, job.owner.finished_at = job, self.timers.now

    def job_stopped(self, device: object, job: EmulatedJob[Image]) -> None:
        job.owner.stopped_at = self.timers.now

    def job_dropped(self, device: object, job: EmulatedJob[Image]) -> None:
        job.owner.dropped = True

    def batch_stepped(self, batch: Sequence[EmulatedJob[Image]], seconds: float, late_s: float) -> None:
        self.batches.append(len(batch))
        self.seconds.append(seconds)
        self.late.append(late_s)
        for job in batch:
            job.left = max(job.left - self.left_out, 0)
            job.owner.left.append(job.left)

    def device_reports(self, device: EmulatedDevice[Image]) -> None:
        self.reports.append((self.timers.now, device.costs.model, device.draining))


def done(image: Image) -> EmulatedJob[Image]:
    assert image.done is not None
    return image.done
