"""Epochs of leaders and of dataplanes: the wall clock's milliseconds at their start, or one more than the previous
epoch.

A process that lost its stored epoch still comes after processes that started earlier.
"""

from dataclasses import dataclass

# How far ahead of the clock an epoch may be and still be believed: a year, in milliseconds.
BELIEVABLE_LEAD_MS = 366 * 24 * 3600 * 1000


def epoch_at(wall_s: float) -> int:
    """The epoch of a start at that wall-clock time, where none is stored."""
    return int(wall_s * 1000)


def latest_believable(wall_s: float) -> int:
    """The largest epoch to accept. A peer that lies must not push epochs to their end."""
    return epoch_at(wall_s) + BELIEVABLE_LEAD_MS


@dataclass(frozen=True)
class LeaseState:
    """Active holder of a ledger: the newest epoch, and how often its holder has beaten. Epoch 0: no holder yet."""

    epoch: int
    beat: int
