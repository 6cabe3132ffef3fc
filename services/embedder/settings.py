"""Settings of the embedder: flags, PENTIMENTO_EMBEDDER_… and the table [embedder]."""

from dataclasses import dataclass
from pathlib import Path

from pentimento.devices.choices import DeviceChoice
from pentimento.domain.embedding import Space
from pentimento.rpc import RpcChannelSettings, RpcServerSettings
from pentimento.settings import setting


@dataclass(frozen=True)
class EmbedderSettings:
    rpc: RpcServerSettings
    channels: RpcChannelSettings
    encoder: Path = setting(
        help="directory of CLIPModel, SiglipModel or open_clip, or of sentence-transformers' BERT (texts only)",
    )
    space: Space = setting(
        Space.TEXT,
        help="text: prompts, and images if the encoder has both; image: images, next to an embedder of texts",
    )
    skip_missing: bool = setting(False, help="skip missing files with a log line, and start without any; off: exit")
    expected_digest: str = setting("", help="sha256:… to require; any: accept any; empty: from registry.json, else any")
    device: DeviceChoice = setting(DeviceChoice.AUTO, help="device of the networks")
    device_claims_dir: Path | None = setting(
        None, help="directory of GPU locks of this host; empty: the first GPU", must_exist=True
    )
    threads: int = setting(1, help="torch threads", minimum=1, maximum=256)
    controller_address: str = setting("", help="controller, and its standbys; empty: none")
    advertise_address: str = setting(
        "", help="address for other processes; empty: the first of listen, with the host's name"
    )

    def __post_init__(self) -> None:
        if self.missing and not self.skip_missing:
            raise ValueError(f"--encoder: {self.missing}")

    @property
    def missing(self) -> str:
        """Return what the process cannot serve without, "" if it exists."""
        return "" if self.encoder.exists() else f"no such file or directory: {self.encoder}"
