"""Load on a running suite: a workload played through the public client, open-loop, and what became of each request."""

from pentimento.loadgen.generator import LoadSettings, play

__all__ = ["LoadSettings", "play"]
