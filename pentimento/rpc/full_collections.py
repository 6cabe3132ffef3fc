"""Run full garbage collections in quiet moments.

By itself the interpreter scans all live objects whenever their number has grown by a quarter: with two thousand waiting
calls, this delays every caller for 110 to 180 ms, several times a minute (CPython 3.11). Only a full collection frees
little: half a megabyte of ten thousand rejected calls. The younger generations are collected as usual.
"""

import asyncio
import gc
from collections.abc import Callable

LOOK_S = 1.0
# No call begins or ends in this time.
QUIET_S = 0.02
# Collections of the middle generation since the last full one: the interpreter's own bound, and the bound after which
# the full collection no longer waits for a quiet moment.
DUE_AFTER = 10
OVERDUE_AFTER = 500
NEVER = 1 << 30


async def collect_in_quiet_moments(activity: Callable[[], object]) -> None:
    """Run due full collections while no call is answered, in place of the interpreter's own times, until cancelled.

    The return value of `activity` changes whenever a call begins or ends.
    """
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER)
    try:
        while True:
            await asyncio.sleep(LOOK_S)
            waited_for = gc.get_count()[2]
            if waited_for >= OVERDUE_AFTER or (waited_for >= DUE_AFTER and await is_quiet(activity)):
                gc.collect()
    finally:
        gc.set_threshold(young, middle, old)


async def is_quiet(activity: Callable[[], object]) -> bool:
    """Return whether no call begins or ends for QUIET_S from now on."""
    before = activity()
    await asyncio.sleep(QUIET_S)
    return activity() == before
