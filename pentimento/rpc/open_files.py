"""Raise the limit of open files: connections are files too, and a process needs further ones."""

import resource
from collections.abc import Sequence

from pentimento.rpc.settings import is_unix

# Files and sockets to other services, in addition to connections.
OTHER_FILES = 256
# A relayed connection needs its own, and both ends of the socket to gRPC.
RELAYED_FILES = 3


def allow_files(count: int) -> None:
    """Let this process open `count` files, up to its hard limit. The usual soft limit is 1024, the bound of
    connections: at the limit a new connection could not be accepted, and so could not replace another."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def files_of(listen: Sequence[str], max_connections: int, *, takes_turns: bool) -> int:
    """Return how many files a process has open when its server has all its connections."""
    of_each = sum(RELAYED_FILES if takes_turns and not is_unix(address) else 1 for address in listen)
    return of_each * max_connections + OTHER_FILES
