"""Settings of `pentimento discriminator train`: flags, PENTIMENTO_TRAINING_… and the table [training]."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pentimento.devices.choices import DeviceChoice
from pentimento.settings import setting

NARROW_SIZE_PX, SIZE_PX = 64, 224


class NetworkChoice(Enum):
    """Name a network: DiffServe's, or the tiny models' own."""

    EFFICIENTNET_V2_S = "efficientnet_v2_s"
    NARROW = "narrow"


@dataclass(frozen=True)
class TrainingSettings:
    cascade: str = setting(help="LIGHT,HEAVY: the models' names, as served")
    out: Path = setting(help="directory to write, for `pentimento up --discriminator`; must not exist")
    objects_url: str = setting(help="object store of the suite: file:///directory or s3://bucket/prefix")
    network: NetworkChoice = setting(
        NetworkChoice.EFFICIENTNET_V2_S, help="torchvision's network, or the tiny models' narrow one"
    )
    size: int = setting(0, help="side of its input in pixels; 0: 224, 64 for the narrow one", minimum=0, maximum=1024)
    start: Path | None = setting(
        None, help="discriminator's directory with the same network, to begin with its weights", must_exist=True
    )
    steps: int = setting(600, help="training steps of the network; 0: only the head, with --start", minimum=0)
    batch: int = setting(64, help="images per step", minimum=2, maximum=4096)
    peak_rate: float = setting(2.0e-3, help="largest learning rate", minimum=1e-7, maximum=1)
    least_pairs: int = setting(200, help="pairs without which nothing is trained", minimum=48)
    most_pairs: int = setting(4000, help="newest pairs to train with", minimum=48)
    seed: int = setting(0, help="seed of the training", minimum=0)
    device: DeviceChoice = setting(DeviceChoice.AUTO, help="device of the network")
    threads: int = setting(1, help="torch threads", minimum=1, maximum=256)

    @property
    def models(self) -> tuple[str, str]:
        light, _, heavy = self.cascade.replace(">", ",").partition(",")
        return light, heavy

    @property
    def size_px(self) -> int:
        return self.size or (NARROW_SIZE_PX if self.network is NetworkChoice.NARROW else SIZE_PX)

    def __post_init__(self) -> None:
        light, heavy = self.models
        if not light or not heavy or "," in heavy:
            raise ValueError(f"--cascade must be LIGHT,HEAVY, got {self.cascade!r:.120}")
        if self.size and self.size < 32:
            raise ValueError(f"--size must be 0 or at least 32, got {self.size}")
        if not self.steps and self.start is None:
            raise ValueError("--steps 0 needs --start: an untrained network says nothing")
        if self.out.exists():
            raise ValueError(f"--out must not exist, a discriminator in service stays as it is: {self.out}")
        if self.most_pairs < self.least_pairs:
            raise ValueError(f"--most-pairs must be at least --least-pairs, {self.least_pairs}, got {self.most_pairs}")
