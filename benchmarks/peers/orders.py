"""Define the orders and settings of end_to_end's peer, importable without LitServe."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PeerOrder:
    """Request one image; `loras` are names of folders of LORAS, at scale 1."""

    prompt: str
    seed: int
    steps: int
    guidance_scale: float
    loras: tuple[str, ...] = ()


@dataclass(frozen=True)
class PeerSettings:
    """Configure LitServe's batches and processes, and whether the denoiser is compiled."""

    max_batch: int
    timeout_s: float
    worker_count: int
    compiled: bool = False

    @property
    def name(self) -> str:
        """Return the name in results."""
        return f"batches of {self.max_batch} within {self.timeout_s:g} s" + (", compiled" if self.compiled else "")
