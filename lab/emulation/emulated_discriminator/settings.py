"""Settings of an emulated discriminator: flags, PENTIMENTO_EMULATED_DISCRIMINATOR_… and the table
[emulated_discriminator]."""

from dataclasses import dataclass
from pathlib import Path

from pentimento.rpc import RpcChannelSettings, RpcServerSettings
from pentimento.settings import setting


@dataclass(frozen=True)
class EmulatedDiscriminatorSettings:
    rpc: RpcServerSettings
    channels: RpcChannelSettings
    fleet: Path = setting(help="TOML file of the fleet; of a worker FILE#NAME, the name of its [[devices]]")
    controller_address: str = setting("", help="controller, and its standbys; empty: none")
    advertise_address: str = setting(
        "", help="address for other processes; empty: the first of listen, with the host's name"
    )
