"""Who this frontdoor is to workers and to the journal."""

from dataclasses import dataclass


@dataclass
class Identity:
    """`epoch` is 0 while it is a standby, and set once when it becomes the active one. `journal_id` is of the journal
    that the epoch was claimed in."""

    frontdoor_id: str
    epoch: int = 0
    journal_id: str = ""
