"""Settings of the discriminator and of the emulated one: flags, PENTIMENTO_DISCRIMINATOR_… and
PENTIMENTO_EMULATED_DISCRIMINATOR_…, the tables [discriminator] and [emulated_discriminator]."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from pentimento.files.adapter_registry import read_discriminators
from pentimento.rpc import RpcChannelSettings, RpcServerSettings
from pentimento.settings import setting


@dataclass(frozen=True)
class DiscriminatorSettings:
    rpc: RpcServerSettings
    channels: RpcChannelSettings
    cascades: tuple[str, ...] = setting(
        (),
        help="discriminators by their cascade, LIGHT>HEAVY=DIR: a directory of an EfficientNet classifier with a label "
        "`real`, as transformers writes it",
    )
    cascade: tuple[str, ...] = setting(
        (), help="models, light first, whose discriminators are found in the registry, where `cascades` names none"
    )
    registry: Path | None = setting(None, help="registry of models (JSON) that names the discriminators of a cascade")
    skip_missing: bool = setting(
        False, help="log a discriminator that is not there and go on without it; without any serve nothing; else end"
    )
    accept_other_digest: bool = setting(False, help="serve a discriminator that its registry.json does not expect")
    threads: int = setting(1, help="torch threads", minimum=1, maximum=256)
    max_batch_size: int = setting(16, help="pictures of one pass", minimum=1, maximum=1024)
    queue_limit: int = setting(256, help="pictures that may wait for a pass", minimum=1)
    max_images: int = setting(64, help="pictures of one call", minimum=1, maximum=1024)
    max_image_bytes: int = setting(16 << 20, help="bytes of a picture", minimum=1)
    controller_address: str = setting("", help="controller to register with, and its standbys; empty for none")
    advertise_address: str = setting(
        "", help="where others reach this process; empty for the first listen address, by the host's name"
    )

    def directories(self) -> dict[str, Path]:
        """Return the directory of each cascade's discriminator that is there, or must be. Raises ValueError naming the
        flag."""
        named = self._named()
        registered = read_discriminators(self.registry) if self.registry is not None else {}
        pairs = [">".join(pair) for pair in pairwise(self.cascade) if ">".join(pair) not in named]
        if (unknown := [pair for pair in pairs if pair not in registered]) and not self.skip_missing:
            raise ValueError(f"--cascade {unknown[0]}: no discriminator of it is in --registry")
        found = named | {pair: registered[pair] for pair in pairs if pair in registered}
        if not found and not self.skip_missing:
            raise ValueError("--cascades must name a discriminator at least")
        return {pair: at for pair, at in found.items() if not self.skip_missing or at.is_dir()}

    @property
    def missing(self) -> str:
        """Return which discriminators are not there, "" where all are."""
        wanted = {*self._named(), *(">".join(pair) for pair in pairwise(self.cascade))}
        if not wanted:
            return "no cascade"
        return ", ".join(f"no discriminator of {pair}" for pair in sorted(wanted - self.directories().keys()))

    def _named(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for given in self.cascades:
            cascade, _, directory = given.partition("=")
            models = cascade.split(">")
            if not directory or len(models) < 2 or not all(models):
                raise ValueError(f"--cascades must be LIGHT>HEAVY=DIR, got {given!r:.120}")
            if cascade in found:
                raise ValueError(f"--cascades names {cascade} twice")
            found[cascade] = Path(directory)
        return found

    def __post_init__(self) -> None:
        self.directories()


@dataclass(frozen=True)
class EmulatedDiscriminatorSettings:
    rpc: RpcServerSettings
    channels: RpcChannelSettings
    fleet: Path = setting(help="TOML file of the fleet whose pictures it scores", must_exist=True)
    max_images: int = setting(64, help="pictures of one call", minimum=1, maximum=1024)
    max_image_bytes: int = setting(16 << 20, help="bytes of a picture", minimum=1)
    controller_address: str = setting("", help="controller to register with, and its standbys; empty for none")
    advertise_address: str = setting(
        "", help="where others reach this process; empty for the first listen address, by the host's name"
    )
