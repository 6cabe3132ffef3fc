"""Plan the processes of a suite over emulated devices: the plug-in behind `pentimento up --emulate`."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lab.emulation.emulated_worker.model import emulated_held_model
from lab.emulation.fleet_file import EmulatedFleet, EmulatedModel, EmulatedReuse, read_fleet, served_profile
from lab.emulation.fleet_settings import fleet_settings
from pentimento.domain.errors import InvalidArgument
from pentimento.policies.cache_selection import NIRVANA_LATENT_THRESHOLDS, Thresholds
from pentimento.policies.plan.settings import ModelQuality, ServingSettings
from pentimento.profiles.catalogue import read_profiles
from pentimento.profiles.costs import costs_to_json
from pentimento.profiles.document import Profile, ProfileKind, profiles_to_json
from pentimento.settings import setting
from pentimento.settings.loading import setting_of
from pentimento.supervisor.state import StateDirectory
from pentimento.supervisor.suite import WORKER_STAGE, PlannedModels, arguments, objects_url, process_of
from pentimento.supervisor.suite_settings import ProcessSpec, SuiteSettings

_WORKER, _DISCRIMINATOR = "lab.emulation.emulated_worker", "lab.emulation.emulated_discriminator"
_EMBEDDER = "lab.emulation.embedder"


@dataclass(frozen=True)
class _Given(PlannedModels):
    """Settings of the controller that environment and file may have; they win over the fleet's file."""

    deferral: tuple[str, ...] = setting((), help="see the controller")
    qualities: tuple[str, ...] = setting((), help="see the controller")


@dataclass(frozen=True)
class EmulatedSuite:
    """See `suite_settings.SuitePlugin`."""

    fleet: EmulatedFleet

    @classmethod
    def read(cls, path: Path) -> "EmulatedSuite":
        """Read a fleet's file. Raises NotFound, and InvalidArgument that names line, field and limit."""
        return cls(read_fleet(path))

    @property
    def default_model(self) -> str:
        """Return the model of requests that name none."""
        return self.fleet.default_model

    @property
    def models(self) -> Sequence[str]:
        """Return the names of the fleet's models."""
        return tuple(model.name for model in self.fleet.models)

    @property
    def cached(self) -> bool:
        """Return whether the suite has a cache."""
        return self.fleet.cache

    @property
    def embedder_module(self) -> str:
        """Return the embedder that finds emulated images by their prompts."""
        return _EMBEDDER

    def gateway_arguments(self) -> tuple[str, ...]:
        """Return the tables of the file; without them latents are reused by NIRVANA's."""
        reuse = self.fleet.reuse or EmulatedReuse(NIRVANA_LATENT_THRESHOLDS)
        return arguments({"thresholds": _entries("latent", reuse.latents) + _entries("image", reuse.images)})

    def workers(
        self, settings: SuiteSettings, state: StateDirectory
    ) -> Sequence[tuple[str, Callable[[int], ProcessSpec], int]]:
        """Return a group for each entry under [[devices]]."""
        return [
            (devices.name, partial(self._worker, settings, state, devices.name), devices.count)
            for devices in self.fleet.devices
        ]

    def discriminators(self, settings: SuiteSettings, state: StateDirectory) -> tuple[ProcessSpec, ...]:
        """Return the discriminators that the file asks for."""
        count = self.fleet.discriminator.count if self.fleet.discriminator is not None else 0
        return tuple(
            self._process(settings, state, f"discriminator-{number}", _DISCRIMINATOR, {}) for number in range(count)
        )

    def controller_arguments(self, config_file: Path | None, small: Sequence[str] = ()) -> tuple[str, ...]:
        """Return models, deferral curve and qualities of the file; `small` stands over its small models."""

        def given(name: str) -> Any:
            return setting_of(_Given, name, "controller", config_file, os.environ)

        serving = fleet_settings(self.fleet)
        heavy, light = given("heavy") or serving.heavy, given("light") or serving.light
        refining = tuple(small) or given("small") or serving.small
        flags = {"heavy": heavy, "light": light, "small": refining}
        if not given("deferral"):
            flags["deferral"] = tuple(f"{threshold}:{share}" for threshold, share in self.fleet.deferral)
        flags["qualities"] = tuple(_qualities(given("qualities"), serving, {heavy, light, *refining}))
        return arguments(flags)

    def frontdoor_arguments(self, folder: Path) -> tuple[str, ...]:
        """Return profiles, and the cascade or default model."""
        files = [profile_file(folder, model.name) for model in self.fleet.models]
        files += [steps_file(folder, model.name) for model in self.fleet.models if model.steps_profile is not None]
        threshold = self.fleet.confidence_threshold if self.fleet.cascade else None
        cascade = self.fleet.cascade or (self.fleet.default_model,)
        return arguments({"profiles": tuple(files), "cascade": cascade, "confidence-threshold": threshold})

    def write_files(self, folder: Path) -> None:
        """Write each model's costs, and its profile of skipped steps. Raises InvalidArgument naming a wrong file."""
        (folder / "profiles").mkdir(parents=True, exist_ok=True)
        for model in self.fleet.models:
            profile_file(folder, model.name).write_text(costs_to_json(served_profile(self.fleet, model)))
            if model.steps_profile is not None:
                steps_file(folder, model.name).write_text(profiles_to_json(_emulated_steps(model, model.steps_profile)))

    def _worker(self, settings: SuiteSettings, state: StateDirectory, devices: str, number: int) -> ProcessSpec:
        objects, grants = objects_url(settings, state), settings.grant_key_file
        flags = {"fleet": f"{self.fleet.path}#{devices}", "objects-url": objects, "grant-key-file": grants}
        return self._process(settings, state, f"{devices}-{number}", _WORKER, flags)

    def _process(
        self, settings: SuiteSettings, state: StateDirectory, name: str, module: str, flags: Mapping[str, object]
    ) -> ProcessSpec:
        return process_of(settings, state, name, module, WORKER_STAGE, {"fleet": self.fleet.path, **flags})


def profile_file(folder: Path, model: str) -> Path:
    """Return where the profile of a model is written."""
    return folder / "profiles" / f"{model}.json"


def steps_file(folder: Path, model: str) -> Path:
    """Return where the profile of a model's skipped steps is written."""
    return folder / "profiles" / f"{model}-steps.json"


def _emulated_steps(model: EmulatedModel, path: Path) -> Profile:
    """Return a real model's profile as one of the emulated model, for the defaults of its requests."""
    found = [one for one in read_profiles([path], "steps_profile").of(ProfileKind.STEPS) if not one.of.adapters]
    if len(found) != 1:
        raise InvalidArgument.of("steps_profile", f"{path} must have one profile of steps without adapters")
    held, (profile,) = emulated_held_model(model, 0), found
    of = replace(profile.of, model=held.model, model_digest=held.model_digest)
    conditions = replace(profile.conditions, guidance_scale=model.guidance_scale)
    return replace(profile, of=of, conditions=conditions)


def _qualities(given: Sequence[str], serving: ServingSettings, planned: set[str]) -> list[str]:
    """Return the qualities that were given, and the file's of the other models that plans have."""
    own = {one.partition("=")[0] for one in given}
    return [*given, *(_quality(one) for one in serving.qualities if one.model in planned - own)]


def _quality(quality: ModelQuality) -> str:
    return f"{quality.model}={max(quality.quality, 0.0)}:{quality.spread}:{quality.reuse}"


def _entries(kind: str, thresholds: Thresholds) -> tuple[str, ...]:
    return tuple(f"{kind}:{one.min_similarity}:{one.saved_share}" for one in thresholds)
