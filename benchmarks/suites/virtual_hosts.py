"""Give processes hosts of their own on one machine: network namespaces joined by a virtual switch. Needs root."""

import ctypes
import fcntl
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.suites.limited_link import run_command
from benchmarks.suites.virtual_switch import Disturbance
from pentimento.domain.errors import NotFound

# Addresses for benchmarks of networks (RFC 2544); a network for each process that makes one.
_NETWORK = "198.19.{}"
_NEAR, _FIRST_FAR = range(1, 6), 10
PREFIX_BITS = 24
# Far from the largest packet; few packets keep the switch cheap.
MTU_BYTES = 32_000
_TUN = Path("/dev/net/tun")
_SET_INTERFACE = 0x400454CA
# IFF_TUN and IFF_NO_PI: bare IP packets.
_BARE_PACKETS = 0x1001
_NEW_NETWORK = 0x40000000


@dataclass(frozen=True)
class VirtualHost:
    """Name a host's address and its network namespace."""

    address: str
    namespace: str


class VirtualNetwork:
    """Hold the hosts by name; `near`: the addresses of this process's own host, its calls come from the first."""

    def __init__(self, near: tuple[str, ...], hosts: dict[str, VirtualHost], switch: subprocess.Popen[bytes]) -> None:
        self.near = near
        self.hosts = hosts
        self._switch = switch

    def address(self, name: str) -> str:
        """Return a host's address."""
        return self.hosts[name].address

    def disturb(self, disturbance: Disturbance) -> None:
        """Apply a disturbance from now on, `Disturbance()` to end it."""
        assert self._switch.stdin is not None
        self._switch.stdin.write(disturbance.line())
        self._switch.stdin.flush()


def enter_network(namespace: str) -> None:
    """Move this thread, and the processes that it starts later, to a network namespace. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(f"/var/run/netns/{namespace}", os.O_RDONLY)
    try:
        if libc.setns(descriptor, _NEW_NETWORK) != 0:
            raise OSError(ctypes.get_errno(), f"no network namespace {namespace}")
    finally:
        os.close(descriptor)


@contextmanager
def virtual_network(names: Sequence[str]) -> Iterator[VirtualNetwork]:
    """Make a host for each name, and end all with the block. Raises NotFound where none can be made."""
    if os.geteuid() or not shutil.which("ip") or not _TUN.exists():
        raise NotFound("NO_NETWORK_NAMESPACES", f"virtual hosts need root, the command ip and {_TUN}")
    prefix, network = f"pmt{os.getpid()}", _NETWORK.format(os.getpid() % 256)
    near = tuple(f"{network}.{number}" for number in _NEAR)
    hosts = {
        name: VirtualHost(f"{network}.{_FIRST_FAR + number}", f"{prefix}-{number}") for number, name in enumerate(names)
    }
    with ExitStack() as stack:
        own = stack.enter_context(_device(f"{prefix}-o"))
        devices = dict.fromkeys(near, own)
        for address in near:
            run_command(f"ip address add {address}/{PREFIX_BITS} dev {prefix}-o")
        run_command(f"ip link set {prefix}-o mtu {MTU_BYTES} up")
        for host in hosts.values():
            devices[host.address] = stack.enter_context(_far_device(host))
        arguments = [f"{address}={device}" for address, device in devices.items()]
        switch = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.suites.virtual_switch", *arguments],
            stdin=subprocess.PIPE,
            pass_fds=tuple(set(devices.values())),
        )
        stack.callback(_end, switch)
        yield VirtualNetwork(near, hosts, switch)


def _end(switch: subprocess.Popen[bytes]) -> None:
    switch.kill()
    switch.wait()


@contextmanager
def _far_device(host: VirtualHost) -> Iterator[int]:
    """Make a namespace with a device, and yield the device's other end."""
    run_command(f"ip netns add {host.namespace}")
    try:
        with _device(host.namespace) as device:
            run_command(f"ip link set {host.namespace} netns {host.namespace}")
            inside = ("ip", "netns", "exec", host.namespace)
            run_command(f"ip address add {host.address}/{PREFIX_BITS} dev {host.namespace}", inside)
            run_command(f"ip link set {host.namespace} mtu {MTU_BYTES} up", inside)
            run_command("ip link set lo up", inside)
            yield device
    finally:
        run_command(f"ip netns del {host.namespace}")


@contextmanager
def _device(name: str) -> Iterator[int]:
    """Make a tun device, which ends with the block."""
    descriptor = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.ioctl(descriptor, _SET_INTERFACE, struct.pack("16sH", name.encode(), _BARE_PACKETS))
        yield descriptor
    finally:
        with suppress(OSError):
            os.close(descriptor)
