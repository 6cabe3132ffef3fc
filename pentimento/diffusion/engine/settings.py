"""Define the engine's settings."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineSettings:
    """Hold the engine's settings. `threads` are torch's. At most `max_batch` requests share a forward pass. A request
    without a deadline is due `aging_limit_s` after its arrival; with `preempt` more urgent requests replace running
    ones, and sizes alternate."""

    threads: int = 1
    max_batch: int = 8
    aging_limit_s: float = 30.0
    preempt: bool = True
    prompt_memo_entries: int = 256
