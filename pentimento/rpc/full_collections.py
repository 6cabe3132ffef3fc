"""Full garbage collections come in quiet moments.

By itself the interpreter looks through all that lives whenever there is a quarter more of it: behind two thousand calls
that wait, this holds up everybody for 110 to 180 ms, several times a minute (CPython 3.11). What only it can free is
little: half a megabyte of ten thousand refused calls. The younger generations are collected as ever.
"""

import asyncio
import gc
from collections.abc import Callable

LOOK_S = 1.0
# In which no call begins or ends.
QUIET_S = 0.02
# In collections of the middle generation since the last full one: the interpreter's own bound, and that beyond which no
# quiet moment is waited for.
DUE_AFTER = 10
OVERDUE_AFTER = 500
NEVER = 1 << 30


async def collect_in_quiet_moments(activity: Callable[[], object]) -> None:
    """Collect fully where it is due and nobody is answered, instead of where the interpreter would, until cancelled.

    What `activity` returns changes whenever a call begins or ends.
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
