"""Settings of the embedder: flags, PENTIMENTO_EMBEDDER_… and the table [embedder]."""

from dataclasses import dataclass
from pathlib import Path

from pentimento.rpc import RpcChannelSettings, RpcServerSettings
from pentimento.settings import setting


@dataclass(frozen=True)
class EmbedderSettings:
    rpc: RpcServerSettings
    channels: RpcChannelSettings
    encoder: Path = setting(
        help="CLIPModel directory, or a sentence-transformers directory of a BERT encoder (texts only)",
    )
    skip_missing: bool = setting(False, help="without the encoder log a line and serve nothing; off: exit")
    expected_encoder_digest: str = setting("", help="required sha256:…; empty: from registry.json, else any")
    accept_other_digest: bool = setting(False, help="serve an encoder with another digest than registry.json")
    threads: int = setting(1, help="torch threads", minimum=1, maximum=256)
    max_batch_size: int = setting(16, help="texts or images per batch", minimum=1, maximum=1024)
    max_wait_ms: float = setting(
        2.0, help="wait for a batch as large as the last; an idle model never waits", minimum=0, maximum=1000
    )
    queue_limit: int = setting(1024, help="waiting texts, and images", minimum=1)
    memo_entries: int = setting(8192, help="cached embeddings; 0: none", minimum=0)
    max_texts: int = setting(64, help="texts per call", minimum=1)
    max_text_bytes: int = setting(16 * 1024, help="UTF-8 bytes of a text", minimum=1)
    max_images: int = setting(16, help="images per call", minimum=1)
    max_image_bytes: int = setting(8 * 1024 * 1024, help="encoded bytes of an image", minimum=1)
    controller_address: str = setting("", help="controller to register with, and its standbys; empty: none")
    advertise_address: str = setting(
        "", help="address for other processes; empty: the first listen address with the host's name"
    )

    def __post_init__(self) -> None:
        if self.missing and not self.skip_missing:
            raise ValueError(f"--encoder: {self.missing}")

    @property
    def missing(self) -> str:
        """Return what the process cannot serve without, "" if it exists."""
        return "" if self.encoder.exists() else f"no such file or directory: {self.encoder}"
