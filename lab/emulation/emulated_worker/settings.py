"""Settings of an emulated worker: flags, PENTIMENTO_EMULATED_WORKER_… and the table [emulated_worker]."""

from dataclasses import dataclass
from pathlib import Path

from pentimento.rpc import RpcChannelSettings, RpcServerSettings
from pentimento.settings import setting


@dataclass(frozen=True)
class EmulatedWorkerSettings:
    """Settings of `python -m lab.emulation.emulated_worker`: flags, PENTIMENTO_EMULATED_WORKER_… and the table
    [emulated_worker]. The fleet's file has the rest."""

    rpc: RpcServerSettings
    channels: RpcChannelSettings
    fleet: Path = setting(help="TOML file of the fleet; of a worker FILE#NAME, the name of its [[devices]]")
    objects_url: str = setting(
        "file:///var/lib/pentimento/objects",
        help="object store: file:///directory or s3://bucket/prefix[?endpoint=…&region=…]; controller, empty: none",
    )
    grant_key_file: Path | None = setting(
        None, help="keys shared by gateways and workers, one per line; the first signs", must_exist=True
    )
    aging_limit_s: float = setting(
        30.0, help="time after arrival at which a request is due, unless its deadline is earlier", minimum=0
    )
    credits: int = setting(0, help="attempts held, apart from those about to end; 0: one batch", minimum=0, maximum=256)
    controller_address: str = setting("", help="controller, and its standbys; empty: none")
    advertise_address: str = setting(
        "", help="address for other processes; empty: the first of listen, with the host's name"
    )
