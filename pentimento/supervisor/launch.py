"""Start a service so that it cannot outlive its supervisor: `python launch.py PARENT_PID COMMAND…`.

A bare interpreter runs this script (no site packages, a few milliseconds). The request for SIGTERM when the parent
dies survives `exec`; making it between fork and exec would run Python in the fork of a threaded process. Linux only;
elsewhere the next start of the suite finds the processes that a crashed supervisor left.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        # The parent may have died before the request.
        if os.getppid() != parent:
            sys.exit("launch: the supervisor is gone")
    os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
