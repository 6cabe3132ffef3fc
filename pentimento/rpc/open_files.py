"""How many files this process may have open: connections are files, too, and what it stores needs some besides."""

import resource

from pentimento.rpc.settings import RpcServerSettings, is_unix

# Besides connections: files, sockets to other services.
OTHER_FILES = 256
# Of a connection that waits for its turn: its own, and both ends of the one that passes it on to gRPC.
RELAYED_FILES = 3


def allow_files(count: int) -> None:
    """Let this process have so many files open, as far as its hard limit goes. Usually 1024, as the bound of
    connections: the one that is too many could not be taken, nor any other make room for it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def files_of(settings: RpcServerSettings, *, takes_turns: bool) -> int:
    """Return how many files a process has open whose server has all the connections that it takes."""
    of_each = sum(RELAYED_FILES if takes_turns and not is_unix(address) else 1 for address in settings.listen)
    return of_each * settings.max_connections + OTHER_FILES
