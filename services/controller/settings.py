"""Settings of the controller: flags, PENTIMENTO_CONTROLLER_… and the table [controller]."""

from dataclasses import dataclass
from pathlib import Path

from pentimento.policies.allocation import ALLOCATORS
from pentimento.rpc import RpcServerSettings
from pentimento.settings import setting


@dataclass(frozen=True)
class ControllerSettings:
    rpc: RpcServerSettings
    lease_s: float = setting(
        2.5,
        help="silence after which a replica falls out of the plan; it reports three times as often",
        minimum=0.2,
        maximum=600,
    )
    plan_interval_s: float = setting(1.0, help="longest time between two looks at the plan", minimum=0.05, maximum=600)
    retention_s: float = setting(60.0, help="how long a silent replica is still shown in the fleet", minimum=0)
    max_replicas: int = setting(4096, help="replicas held at once", minimum=1)
    max_watchers: int = setting(256, help="plan streams served at once", minimum=1)
    allocator: str = setting("resident", help=f"policy that plans: {', '.join(sorted(ALLOCATORS))}")
    state_dir: Path | None = setting(
        None, help="directory of the leader epoch; without it the clock alone makes it grow"
    )

    def __post_init__(self) -> None:
        if self.allocator not in ALLOCATORS:
            raise ValueError(f"--allocator must be one of {', '.join(sorted(ALLOCATORS))}, got {self.allocator!r}")
