"""Settings of the discriminator: flags, PENTIMENTO_DISCRIMINATOR_… and the table [discriminator]."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from pentimento.devices.choices import DeviceChoice
from pentimento.domain.adapters import ANY_DIGEST
from pentimento.domain.safety import SUBJECTS
from pentimento.files.adapter_registry import read_discriminators
from pentimento.files.discriminator_records import check_cascade
from pentimento.rpc import RpcChannelSettings, RpcServerSettings
from pentimento.settings import setting


def is_registry(cascade: str) -> bool:
    return not {">", "="} & {*cascade}


@dataclass(frozen=True)
class DiscriminatorSettings:
    rpc: RpcServerSettings
    channels: RpcChannelSettings
    cascades: tuple[str, ...] = setting(
        (),
        help="LIGHT>HEAVY=DIR: directory of a torchvision or transformers EfficientNet with a label `real`; or a JSON "
        "registry with the discriminators of `cascade`",
    )
    cascade: tuple[str, ...] = setting(
        (),
        help="models, light first: of requests without a model unless the plan names some, and of discriminators in "
        "the registry; the last, or only, one is the default; empty: the first by name",
    )
    encoder: str = setting(
        "", help="the suite's encoder; discriminators that read prompts by another are skipped; empty: any"
    )
    skip_missing: bool = setting(False, help="skip missing files with a log line, and start without any; off: exit")
    expected_digest: str = setting("", help="sha256:… to require; any: accept any; empty: from registry.json, else any")
    device: DeviceChoice = setting(DeviceChoice.AUTO, help="device of the networks")
    device_claims_dir: Path | None = setting(
        None, help="directory of GPU locks of this host; empty: the first GPU", must_exist=True
    )
    classifiers: tuple[str, ...] = setting(
        (), help="prompt=DIR, image=DIR: directories of transformers classifiers of texts and of images; empty: none"
    )
    unsafe_labels: tuple[str, ...] = setting(
        ("nsfw", "unsafe"),
        help="unsafe labels of both classifiers, in any case; each classifier needs one or more",
    )
    unsafe_limit: float = setting(
        0.5,
        help="sum of the unsafe labels' probabilities that refuses a prompt or image",
        minimum=0.0,
        maximum=1.0,
    )
    threads: int = setting(1, help="torch threads", minimum=1, maximum=256)
    controller_address: str = setting("", help="controller, and its standbys; empty: none")
    advertise_address: str = setting(
        "", help="address for other processes; empty: the first of listen, with the host's name"
    )

    def classifier_directories(self) -> dict[str, Path]:
        """Return the directories of the classifiers by what they check, without missing ones where `skip_missing`.
        Raises ValueError naming the flag."""
        found: dict[str, Path] = {}
        for given in self.classifiers:
            subject, _, directory = given.partition("=")
            if subject not in SUBJECTS or not directory:
                raise ValueError(f"--classifiers must be prompt=DIR and image=DIR, got {given!r:.120}")
            if subject in found:
                raise ValueError(f"--classifiers names {subject} twice")
            found[subject] = Path(directory)
        lacking = [subject for subject, path in found.items() if not path.is_dir()]
        if lacking and not self.skip_missing:
            raise ValueError(f"--classifiers {lacking[0]}={found[lacking[0]]}: is no directory")
        return {subject: path for subject, path in found.items() if subject not in lacking}

    def directories(self) -> dict[str, Path]:
        """Return the directory of each cascade's discriminator, if it exists or must exist. Raises ValueError naming
        the flag."""
        named = self._named()
        registered: dict[str, Path] = {}
        for registry in filter(is_registry, self.cascades):
            registered = read_discriminators(Path(registry), self.encoder) | registered
        pairs = [">".join(pair) for pair in pairwise(self.cascade) if ">".join(pair) not in named]
        if (unknown := [pair for pair in pairs if pair not in registered]) and not self.skip_missing:
            raise ValueError(f"--cascade {unknown[0]}: no discriminator of it is in a registry of --cascades")
        found = named | {pair: registered[pair] for pair in pairs if pair in registered}
        if not found and not self.skip_missing and not self.classifiers:
            raise ValueError("--cascades must name a discriminator at least")
        return {pair: at for pair, at in found.items() if not self.skip_missing or at.is_dir()}

    @property
    def missing(self) -> str:
        """Return the names of missing discriminators, "" for none."""
        wanted = {*self._named(), *(">".join(pair) for pair in pairwise(self.cascade))}
        if not wanted:
            return "no cascade"
        return ", ".join(f"no discriminator of {pair}" for pair in sorted(wanted - self.directories().keys()))

    def _named(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for given in self.cascades:
            if is_registry(given):
                continue
            cascade, _, directory = given.partition("=")
            models = cascade.split(">")
            if not directory or len(models) < 2 or not all(models):
                raise ValueError(f"--cascades must be LIGHT>HEAVY=DIR or a registry, got {given!r:.120}")
            if cascade in found:
                raise ValueError(f"--cascades names {cascade} twice")
            found[cascade] = Path(directory)
        return found

    @property
    def accepts_other_digest(self) -> bool:
        return self.expected_digest == ANY_DIGEST

    def __post_init__(self) -> None:
        if self.expected_digest and not self.accepts_other_digest:
            raise ValueError("--expected-digest must be empty or any: there are several discriminators")
        self.classifier_directories()
        for cascade, directory in self.directories().items():
            check_cascade(directory, cascade)
