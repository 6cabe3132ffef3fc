"""Put a process behind a link of a given bit rate: another network namespace, limited by tc. Needs root."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pentimento.domain.errors import NotFound

# The near end is in this process's namespace. Addresses for benchmarks of networks (RFC 2544).
NEAR, FAR, PREFIX_BITS = "198.18.213.1", "198.18.213.2", 30
# Jumbo frames, as data centres have them.
MTU_BYTES = 9000
BURST_BYTES = 256 * 1024
LATENCY_MS = 50


@dataclass(frozen=True)
class LimitedLink:
    """Name the link's two addresses, and the command before one that runs at the far end."""

    near: str
    far: str
    enter: tuple[str, ...]


@contextmanager
def limited_link(gbit_per_s: float) -> Iterator[LimitedLink]:
    """Start a link that carries `gbit_per_s` in each direction. Raises NotFound where namespaces cannot be made."""
    name = f"pmt-{os.getpid()}"
    if os.geteuid() or not shutil.which("ip") or not shutil.which("tc"):
        raise NotFound("NO_NETWORK_NAMESPACES", "a limited link needs root and the commands ip and tc")
    near, far = f"{name}-n", f"{name}-f"
    enter = ("ip", "netns", "exec", name)
    limit = f"tbf rate {gbit_per_s * 1e6:.0f}kbit burst {BURST_BYTES} latency {LATENCY_MS}ms"
    run_command(f"ip netns add {name}")
    try:
        run_command(f"ip link add {near} type veth peer name {far} netns {name}")
        for device, address, inside in ((near, NEAR, ()), (far, FAR, enter)):
            run_command(f"ip address add {address}/{PREFIX_BITS} dev {device}", inside)
            run_command(f"ip link set {device} mtu {MTU_BYTES} up", inside)
            run_command(f"tc qdisc add dev {device} root {limit}", inside)
        run_command("ip link set lo up", enter)
        yield LimitedLink(NEAR, FAR, enter)
    finally:
        # The namespace ends later than its command; the next link has the same names.
        subprocess.run(["ip", "link", "del", near], check=False, capture_output=True)
        run_command(f"ip netns del {name}")


def run_command(command: str, inside: tuple[str, ...] = ()) -> None:
    """Run a command, at the far end after `enter`. Raises NotFound with its error."""
    try:
        subprocess.run([*inside, *command.split()], check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        raise NotFound("NO_NETWORK_NAMESPACES", f"{command}: {error.stderr.strip()}") from error
