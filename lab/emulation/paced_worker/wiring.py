"""Build a paced worker: the real worker with a paced model."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from lab.emulation.pace import DevicePace, read_pace
from lab.emulation.paced_worker.loras import PacedLoras
from lab.emulation.paced_worker.model import PacedModel
from lab.emulation.paced_worker.stamps import summed_stamps
from pentimento.devices.choices import CompileMode, DtypeChoice
from pentimento.diffusion.device import choose_dtype
from pentimento.diffusion.families.model import DiffusionModel
from pentimento.domain.components import ComponentRule
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import Capability, HeldModel
from pentimento.policies.components import Utility
from services.unet_worker.models.loader import ModelSource
from services.unet_worker.process import WorkerProcess
from services.unet_worker.settings import UnetWorkerSettings
from services.unet_worker.wiring import TorchModels, room_for_halves


def wire(settings: UnetWorkerSettings, lora_rule: Callable[[], ComponentRule] = Utility) -> WorkerProcess:
    """Build the process, inside its event loop. `--model` names a pace's file. Raises InvalidArgument or NotFound for
    it, and InvalidArgument for settings that do not apply to a paced device."""
    if settings.other_models or settings.compile not in (CompileMode.AUTO, CompileMode.OFF):
        raise InvalidArgument.of("other_models", "and compile must not be set: a paced device has one model")
    pace = read_pace(settings.model)
    paced = _of_pace(settings, pace)
    capabilities = frozenset({Capability.EMULATED})
    source = ModelSource(
        partial(_load, pace),
        summed_stamps,
        capabilities,
        partial(_loras, pace),
        lora_rule=lora_rule,
        usual=(pace.steps, pace.guidance_scale),
    )
    models = TorchModels({paced.model_name: paced}, source)
    return WorkerProcess(settings, models, settings.credits, bounds=room_for_halves(settings))


def _load(pace: DevicePace, settings: UnetWorkerSettings) -> PacedModel:
    return PacedModel(pace, choose_dtype(settings.dtype, torch.device("cpu")))


def _loras(pace: DevicePace, model: DiffusionModel, held: HeldModel, settings: UnetWorkerSettings) -> PacedLoras | None:
    return PacedLoras(pace, model.dtype) if pace.loras else None


def _of_pace(settings: UnetWorkerSettings, pace: DevicePace) -> UnetWorkerSettings:
    """The settings, completed by the pace; half precision, as on the devices that paces are of, where none is set."""
    return replace(
        settings,
        model_name=settings.model_name or pace.name,
        dtype=DtypeChoice.FLOAT16 if settings.dtype is DtypeChoice.AUTO else settings.dtype,
    )
