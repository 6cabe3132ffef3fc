"""Starts a service so that it cannot outlive its supervisor: `python launch.py PARENT_PID COMMAND…`.

Run as a script by a bare interpreter (no site packages, a few milliseconds): the wish to get SIGTERM when the parent
dies survives `exec`, and it cannot be made between fork and exec without running Python in a threaded one's fork.
Linux only; elsewhere the next start of the suite finds what a crashed supervisor left.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        # The parent may have died before the wish was made.
        if os.getppid() != parent:
            sys.exit("launch: the supervisor is gone")
    os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
