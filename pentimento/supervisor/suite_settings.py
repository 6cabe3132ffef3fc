"""Define the settings of a local suite."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from pentimento.domain.safety import IMAGE, PROMPT
from pentimento.supervisor.models import ModelDirectory
from pentimento.supervisor.state import StateDirectory


@dataclass(frozen=True)
class ProcessSpec:
    """Describe a process. `address` answers health checks. Stages drain in ascending order: a caller stops before the
    services that it calls. `devices`: the GPUs that the process may use; `device`: its GPU, once it is placed."""

    name: str
    module: str
    arguments: tuple[str, ...]
    address: str
    stage: int
    devices: tuple[str, ...] = ()
    device: str = ""


@dataclass(frozen=True)
class ReplicaGroup:
    """Describe equal processes in a variable number: `spec` makes the process of a number from 0 on, and `count` is
    the first number of processes."""

    name: str
    spec: Callable[[int], ProcessSpec]
    count: int

    @property
    def specs(self) -> tuple[ProcessSpec, ...]:
        """Return the first processes of the group."""
        return tuple(self.spec(number) for number in range(self.count))


@dataclass(frozen=True)
class Suite:
    """List all processes. `groups` hold the processes of `processes` that may be scaled while the suite runs."""

    processes: tuple[ProcessSpec, ...]
    groups: tuple[ReplicaGroup, ...] = ()


@dataclass(frozen=True)
class ServedCascade:
    """Describe a cascade: models, light first, and a discriminator's directory for each model but the last.

    `confidence_threshold`: images below it are deferred while the plan has no threshold; None for the discriminator's
    own. `given`: the models as requested, by name or directory."""

    models: tuple[str, ...]
    discriminators: tuple[Path, ...]
    confidence_threshold: float | None = None
    given: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the cascade's name in the model repository."""
        return ">".join(self.models)

    def scored(self) -> tuple[tuple[str, Path], ...]:
        """Return the name of each pair of consecutive models, with its discriminator."""
        pairs = zip(pairwise(self.models), self.discriminators, strict=True)
        return tuple((f"{light}>{heavy}", directory) for (light, heavy), directory in pairs)


class SuitePlugin(Protocol):
    """Replace models by emulated devices: made from a fleet's file by a plug-in of the group `pentimento.suites`."""

    @property
    def models(self) -> Sequence[str]:
        """Return the names of the fleet's models."""

    @property
    def cached(self) -> bool:
        """Return whether embedder and gateway are started."""

    @property
    def embedder_module(self) -> str:
        """Return the embedder's module for a suite with a cache."""

    def gateway_arguments(self) -> tuple[str, ...]:
        """Return the gateway's flags for reuse."""

    def workers(
        self, settings: "SuiteSettings", state: StateDirectory
    ) -> Sequence[tuple[str, Callable[[int], ProcessSpec], int]]:
        """Return each type of device: its name, a function that makes its process of a number, and their count."""

    def discriminators(self, settings: "SuiteSettings", state: StateDirectory) -> tuple[ProcessSpec, ...]: ...

    def controller_arguments(self, config_file: Path | None, small: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the controller's planning flags that neither environment nor `config_file` sets. The models of
        `small` refine hits; empty for the fleet's own."""

    def frontdoor_arguments(self, folder: Path) -> tuple[str, ...]:
        """Return flags for the models' costs, which `write_files` writes, and for the cascade or default model."""

    def write_files(self, folder: Path) -> None:
        """Write the files that `frontdoor_arguments` names."""


@dataclass(frozen=True)
class SuiteSettings:
    """Describe the suite that a supervisor starts.

    `image_encoder`: the second encoder, of images; None where `encoder` has both. `cells`: the number of frontdoors,
    then earlier numbers with requests that stay reachable. `copies`: workers of each model, or of all models under the
    policy many-models. `public`: host:port of the public API, next to its unix socket; `http`: that of the HTTP API,
    `admin`: that of the tenants' administration; "" for none. `emulated`: devices that replace the models.
    `policy`: the controller's, which plans for the SLO `slo_s`; `small`: the models that refine hits under it, best
    first. `profiles`: files of any kind. `controlnets`: the registry that `controlnet_copies` processes serve.
    `cascade`: the models of requests that name none; None for the default model. `prompt_classifier`,
    `image_classifier`: directories of the classifiers that check prompts and images. `devices`: the GPUs over which the
    services with networks are spread, instead of `device`; `places`: the GPUs of one service or of one model's workers
    (`unet_worker/MODEL`) instead; empty for the CPU. `flags`: more flags of each service, by the last part of its
    module; None for its own default."""

    models: tuple[ModelDirectory, ...]
    encoder: Path
    image_encoder: Path | None = None
    copies: int = 1
    cells: tuple[int, ...] = (1,)
    public: str = ""
    http: str = ""
    admin: str = ""
    device: str = "auto"
    threads: int = 1
    config_file: Path | None = None
    token_file: Path | None = None
    service_token_file: Path | None = None
    grant_key_file: Path | None = None
    signing_key_file: Path | None = None
    receipt_key_file: Path | None = None
    emulated: SuitePlugin | None = None
    policy: str = ""
    small: tuple[str, ...] = ()
    slo_s: float | None = None
    profiles: tuple[Path, ...] = ()
    prompt_classifier: Path | None = None
    image_classifier: Path | None = None
    controlnets: Path | None = None
    controlnet_copies: int = 1
    cascade: ServedCascade | None = None
    devices: tuple[str, ...] = ()
    places: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    flags: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    @property
    def classifiers(self) -> dict[str, Path]:
        """Return the directories of the classifiers by what they check."""
        given = {PROMPT: self.prompt_classifier, IMAGE: self.image_classifier}
        return {subject: directory for subject, directory in given.items() if directory is not None}

    @property
    def safety_checks(self) -> tuple[str, ...]:
        """Return what classifiers check: prompts, images, both or nothing."""
        return tuple(self.classifiers)

    def devices_of(self, service: str) -> tuple[str, ...] | None:
        """Return the GPUs for a service's processes, empty for the CPU; None if no setting names any."""
        for name in (service, service.partition("/")[0]):
            if name in self.places:
                return self.places[name]
        return self.devices or None

    @property
    def cached(self) -> bool:
        """Return whether embedder and gateway are started."""
        return self.emulated is None or self.emulated.cached
