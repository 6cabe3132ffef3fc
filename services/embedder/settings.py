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
        help="CLIPModel directory (config, safetensors, tokenizer, preprocessor_config), or one that "
        "sentence-transformers wrote of a BERT encoder, which embeds texts alone",
    )
    skip_missing: bool = setting(False, help="where the encoder is not there, log so and serve nothing; else end")
    expected_encoder_digest: str = setting(
        "", help="sha256:… that the encoder must have; empty: by registry.json beside it, else any"
    )
    accept_other_digest: bool = setting(False, help="serve an encoder that is not the one its registry.json expects")
    threads: int = setting(1, help="torch threads of the model", minimum=1, maximum=256)
    max_batch_size: int = setting(16, help="texts or images of one batch", minimum=1, maximum=1024)
    max_wait_ms: float = setting(
        2.0, help="wait for a batch as large as the last one; an idle model never waits", minimum=0, maximum=1000
    )
    queue_limit: int = setting(1024, help="texts, and images, that may wait for the model", minimum=1)
    memo_entries: int = setting(8192, help="embeddings kept, 0 for none", minimum=0)
    max_texts: int = setting(64, help="texts of one call", minimum=1)
    max_text_bytes: int = setting(16 * 1024, help="UTF-8 bytes of one text", minimum=1)
    max_images: int = setting(16, help="images of one call", minimum=1)
    max_image_bytes: int = setting(8 * 1024 * 1024, help="encoded bytes of one image", minimum=1)
    controller_address: str = setting("", help="controller to register with, and its standbys; empty for none")
    advertise_address: str = setting(
        "", help="where others reach this process; empty for the first listen address, by the host's name"
    )

    def __post_init__(self) -> None:
        if self.missing and not self.skip_missing:
            raise ValueError(f"--encoder: {self.missing}")

    @property
    def missing(self) -> str:
        """Return what the process cannot serve without, "" where it is there."""
        return "" if self.encoder.exists() else f"no such file or directory: {self.encoder}"
