"""The switch of virtual hosts: which packets it forwards, drops, loses and delays."""

import os
import socket
from threading import Thread

from benchmarks.suites.virtual_switch import Disturbance, Switch, ends_of

ONE, OTHER, THIRD = "198.19.0.10", "198.19.0.11", "198.19.0.12"


def packet(source: str, destination: str, body: bytes = b"") -> bytes:
    """Return an IPv4 packet with only the fields that a switch reads."""
    return b"\x45" + bytes(11) + socket.inet_aton(source) + socket.inet_aton(destination) + body


DISTURBED: list[tuple[Disturbance, tuple[str, str], float, float | None]] = [
    (Disturbance(), (ONE, OTHER), 0.0, 0.0),
    (Disturbance(apart=((ONE, OTHER),)), (ONE, OTHER), 0.9, None),
    (Disturbance(apart=((ONE, OTHER),)), (OTHER, ONE), 0.9, None),
    (Disturbance(apart=((ONE, OTHER),)), (ONE, THIRD), 0.9, 0.0),
    (Disturbance(lossy=ONE), (OTHER, ONE), 0.049, None),
    (Disturbance(lossy=ONE), (OTHER, ONE), 0.05, 0.0),
    (Disturbance(lossy=ONE), (OTHER, THIRD), 0.0, 0.0),
    (Disturbance(late=ONE), (ONE, OTHER), 0.0, 0.2),
    (Disturbance(late=ONE), (OTHER, ONE), 0.0, 0.2),
    (Disturbance(late=ONE), (OTHER, THIRD), 0.0, 0.0),
]


def test_disturbance_delays_or_drops_packets_of_named_hosts_only() -> None:
    for disturbance, ends, drawn, delay_s in DISTURBED:
        assert disturbance.delay_s(ends, drawn) == delay_s, (disturbance, ends, drawn)


def test_disturbance_is_read_as_it_was_written() -> None:
    written = Disturbance(((ONE, OTHER), (ONE, THIRD)), lossy=OTHER, late=THIRD)

    assert Disturbance.parse(written.line()) == written


def test_ends_of_other_protocols_are_unknown() -> None:
    assert ends_of(packet(ONE, OTHER)) == (ONE, OTHER)
    assert ends_of(b"\x60" + bytes(39)) is None


def test_switch_forwards_to_destination_until_hosts_are_parted() -> None:
    # Sockets that keep packets apart, as tun devices do.
    pairs = {address: socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for address in (ONE, OTHER, THIRD)}
    for _, device in pairs.values():
        device.setblocking(False)
    commands, told = os.pipe()
    switch = Switch({address: device.fileno() for address, (_, device) in pairs.items()}, commands)
    running = Thread(target=switch.run)
    running.start()
    one, other, third = (host for host, _ in pairs.values())

    one.send(packet(ONE, OTHER, b"first"))
    assert other.recv(100) == packet(ONE, OTHER, b"first")
    os.write(told, Disturbance(apart=((ONE, OTHER),)).line())
    # The switch has read the line once a packet that was sent after it is dropped.
    while True:
        one.send(packet(ONE, OTHER, b"tried"))
        one.send(packet(ONE, THIRD, b"marker"))
        third.recv(100)
        other.setblocking(False)
        try:
            other.recv(100)
        except BlockingIOError:
            break
    one.send(packet(ONE, "198.19.0.99", b"to nobody"))
    one.send(packet(ONE, THIRD, b"last"))
    assert third.recv(100) == packet(ONE, THIRD, b"last")

    os.close(told)
    running.join()
    os.close(commands)
    for pair in pairs.values():
        for end in pair:
            end.close()
