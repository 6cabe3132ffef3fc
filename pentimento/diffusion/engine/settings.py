"""How the engine works, as one value."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineSettings:
    """Settings of the engine. `threads` are torch's. At most `max_batch` requests share a forward pass. A request
    without a deadline is due `aging_limit_s` after it came; with `preempt` the more urgent one runs, whoever ran
    before, and sizes take turns."""

    threads: int = 1
    max_batch: int = 8
    aging_limit_s: float = 30.0
    preempt: bool = True
    prompt_memo_entries: int = 256
