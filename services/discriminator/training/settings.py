"""Settings of `pentimento discriminator train`: flags, PENTIMENTO_TRAINING_… and the table [training]."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pentimento.devices.choices import DeviceChoice
from pentimento.settings import setting


class NetworkChoice(Enum):
    """Name a network: DiffServe's, or the tiny models' own."""

    EFFICIENTNET_V2_S = "efficientnet_v2_s"
    NARROW = "narrow"


# Side of a network's input.
SIZES_PX = {NetworkChoice.EFFICIENTNET_V2_S: 224, NetworkChoice.NARROW: 64}


@dataclass(frozen=True)
class TrainingSettings:
    cascade: str = setting(help="LIGHT,HEAVY: the models' names, as served")
    out: Path = setting(help="directory to write, for `pentimento up --discriminator`; must not exist")
    objects_url: str = setting(help="object store of the suite: file:///directory or s3://bucket/prefix")
    network: NetworkChoice = setting(
        NetworkChoice.EFFICIENTNET_V2_S, help="torchvision's network, or the tiny models' narrow one"
    )
    start: Path | None = setting(
        None, help="discriminator's directory with the same network, to begin with its weights", must_exist=True
    )
    steps: int = setting(600, help="training steps of the network; 0: only the head, with --start", minimum=0)
    seed: int = setting(0, help="seed of the training", minimum=0)
    device: DeviceChoice = setting(DeviceChoice.AUTO, help="device of the network")
    threads: int = setting(1, help="torch threads", minimum=1, maximum=256)

    @property
    def models(self) -> tuple[str, str]:
        light, _, heavy = self.cascade.replace(">", ",").partition(",")
        return light, heavy

    @property
    def size_px(self) -> int:
        return SIZES_PX[self.network]

    def __post_init__(self) -> None:
        light, heavy = self.models
        if not light or not heavy or "," in heavy:
            raise ValueError(f"--cascade must be LIGHT,HEAVY, got {self.cascade!r:.120}")
        if not self.steps and self.start is None:
            raise ValueError("--steps 0 needs --start: an untrained network says nothing")
        if self.out.exists():
            raise ValueError(f"--out must not exist, a discriminator in service stays as it is: {self.out}")
