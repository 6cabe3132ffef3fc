"""What the peer of end_to_end is asked for, and how it is set up; for those who have no LitServe installed too."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PeerOrder:
    """`loras` are names of folders of LORAS, at scale 1."""

    prompt: str
    seed: int
    steps: int
    guidance_scale: float
    loras: tuple[str, ...] = ()


@dataclass(frozen=True)
class PeerSettings:
    """How LitServe batches, over how many processes, and whether the denoiser is compiled."""

    max_batch: int
    timeout_s: float
    worker_count: int
    compiled: bool = False

    @property
    def name(self) -> str:
        """What results call it."""
        return f"batches of {self.max_batch} within {self.timeout_s:g} s" + (", compiled" if self.compiled else "")
