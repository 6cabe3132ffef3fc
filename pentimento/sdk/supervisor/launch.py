"""Starts a service so that it cannot outlive its supervisor: `python launch.py PARENT_PID NICENESS COMMAND…`.

Run as a script by a bare interpreter (no site packages, a few milliseconds): the wish to get SIGTERM when the parent
dies survives `exec`, and it cannot be made between fork and exec without running Python in a threaded one's fork.
Linux only; elsewhere the next start of the suite finds what a crashed supervisor left.
"""

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

AUTOGROUP = Path("/proc/self/autogroup")
PR_SET_PDEATHSIG = 1


def main(parent: int, niceness: int, command: list[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        # The parent may have died before the wish was made.
        if os.getppid() != parent:
            sys.exit("launch: the supervisor is gone")
    if niceness:
        give_way(niceness)
    os.execv(command[0], command)


def give_way(niceness: int) -> None:
    """Linux shares the processor among sessions first, each with a niceness of its own, and then within them."""
    os.nice(niceness)
    # Of this process's own session, as the supervisor starts it; else it would be the whole terminal's.
    if os.getsid(0) == os.getpid():
        with suppress(OSError):
            AUTOGROUP.write_text(str(niceness))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
