"""Who this frontdoor is to workers and to the journal."""

from dataclasses import dataclass


@dataclass
class Identity:
    """`epoch` is 0 while it is a standby, and set once when it becomes the active one."""

    frontdoor_id: str
    epoch: int = 0
