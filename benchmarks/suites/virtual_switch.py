"""Forward IP packets between the hosts of a virtual network, and drop, lose or delay them.

A process: `python -m benchmarks.suites.virtual_switch ADDRESS=DESCRIPTOR…`, with an open tun device for each address;
several addresses may have one device. Each line of standard input is a new disturbance in JSON; its end ends the
switch. The kernel's own means (tc netem) are missing from some kernels.
"""

import heapq
import json
import os
import random
import select
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import count

LOSS = 0.05
DELAY_S = 0.2
_IPV4 = 4
# The largest packet of a device.
PACKET_BYTES = 2**16
_WAIT_S = 1.0


@dataclass(frozen=True)
class Disturbance:
    """Describe the network's faults. `apart`: pairs of addresses without any packet between them; `lossy` and `late`:
    addresses with packets lost at random or delayed in both directions."""

    apart: tuple[tuple[str, str], ...] = ()
    lossy: str = ""
    late: str = ""

    def delay_s(self, ends: tuple[str, str], drawn: float) -> float | None:
        """Return the seconds that a packet between these ends waits; None drops it. `drawn`: uniform from 0 to 1."""
        if ends in self.apart or ends[::-1] in self.apart:
            return None
        if self.lossy in ends and drawn < LOSS:
            return None
        return DELAY_S if self.late in ends else 0.0

    def line(self) -> bytes:
        """Return the line for the switch's input."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> "Disturbance":
        """Return the disturbance that `line` wrote."""
        read = json.loads(line)
        return cls(tuple((one, other) for one, other in read["apart"]), read["lossy"], read["late"])


def ends_of(packet: bytes) -> tuple[str, str] | None:
    """Return the source and the destination; None for a packet of another protocol than IPv4."""
    if packet[0] >> 4 != _IPV4:
        return None
    return socket.inet_ntoa(packet[12:16]), socket.inet_ntoa(packet[16:20])


class Switch:
    """Forward packets until the input ends."""

    def __init__(self, devices: Mapping[str, int], commands: int) -> None:
        self._devices = devices
        self._commands = commands
        self._disturbance = Disturbance()
        self._late: list[tuple[float, int, int, bytes]] = []
        self._numbers = count()

    def run(self) -> None:
        """Forward packets, and take new disturbances, until the input ends."""
        watched = [self._commands, *set(self._devices.values())]
        rest = b""
        while True:
            wait_s = self._late[0][0] - time.monotonic() if self._late else _WAIT_S
            for found in select.select(watched, [], [], max(0.0, wait_s))[0]:
                if found != self._commands:
                    self._forward(found)
                    continue
                if not (read := os.read(found, PACKET_BYTES)):
                    return
                *lines, rest = (rest + read).split(b"\n")
                for line in lines:
                    self._disturbance = Disturbance.parse(line)
            self._send_due()

    def _forward(self, device: int) -> None:
        """Forward every packet that waits in the device."""
        while True:
            try:
                packet = os.read(device, PACKET_BYTES)
            except BlockingIOError:
                return
            ends = ends_of(packet)
            target = None if ends is None else self._devices.get(ends[1])
            if ends is None or target is None:
                continue
            delay_s = self._disturbance.delay_s(ends, random.random())
            if delay_s:
                heapq.heappush(self._late, (time.monotonic() + delay_s, next(self._numbers), target, packet))
            elif delay_s is not None:
                _send(target, packet)

    def _send_due(self) -> None:
        while self._late and self._late[0][0] <= time.monotonic():
            _, _, target, packet = heapq.heappop(self._late)
            _send(target, packet)


def _send(device: int, packet: bytes) -> None:
    try:
        os.write(device, packet)
    except OSError:
        # A full or closed device drops packets, as a real one does.
        return


if __name__ == "__main__":
    given = (argument.partition("=") for argument in sys.argv[1:])
    Switch({address: int(device) for address, _, device in given}, sys.stdin.fileno()).run()
