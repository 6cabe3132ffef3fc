"""Epochs of leaders and of dataplanes: the wall clock's milliseconds at their start, or one more than the one before.

So a process that has lost what it had stored still comes after those that started earlier.
"""

from dataclasses import dataclass

# How far ahead of the clock an epoch may be and still be believed: a year, in milliseconds.
BELIEVABLE_LEAD_MS = 366 * 24 * 3600 * 1000


def epoch_at(wall_s: float) -> int:
    """The epoch of a start at that wall-clock time, where none is stored."""
    return int(wall_s * 1000)


def latest_believable(wall_s: float) -> int:
    """The largest epoch that somebody can have. A liar must not push epochs to their end."""
    return epoch_at(wall_s) + BELIEVABLE_LEAD_MS


@dataclass(frozen=True)
class LeaseState:
    """Who is active in this ledger: the newest epoch, and how often its holder has beaten. Epoch 0: nobody ever was."""

    epoch: int
    beat: int
