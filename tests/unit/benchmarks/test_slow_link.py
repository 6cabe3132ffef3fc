"""Test that a link lets bytes through unchanged at its rate."""

import socket
import threading

import pytest

from benchmarks.suites.slow_link import TokenBucket, pump


class Clock:
    """Advance by sleeping, with `late_s` a little too far."""

    def __init__(self, late_s: float = 0.0) -> None:
        self.now = 100.0
        self._late_s = late_s

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds + self._late_s


def bucket(clock: Clock, rate: float = 1000.0, burst: int = 100) -> TokenBucket:
    return TokenBucket(rate, burst, clock.monotonic, clock.sleep)


@pytest.mark.parametrize("late_s", [0.0, 0.01])
def test_token_bucket_limits_rate_after_burst(late_s: float) -> None:
    clock = Clock(late_s)
    link = bucket(clock)

    for _ in range(100):
        link.spend(50)

    # 5000 bytes at 1000 a second; later sleeps compensate for one that was too long
    assert 4.85 <= clock.now - 100.0 <= 5.02


def test_token_bucket_pause_allows_one_burst() -> None:
    clock = Clock()
    link = bucket(clock)
    clock.now += 60.0

    link.spend(100)
    assert clock.now == 160.0
    link.spend(1000)
    assert clock.now == pytest.approx(161.0)


def test_slow_link_carries_bytes_unchanged() -> None:
    clock = Clock()
    (near, source), (target, far) = socket.socketpair(), socket.socketpair()
    carrying = threading.Thread(target=pump, args=(source, target, bucket(clock, rate=1e6)))
    carrying.start()
    sent = bytes(range(256)) * 100
    with near, far:
        near.sendall(sent)
        near.shutdown(socket.SHUT_WR)
        found = b""
        while part := far.recv(65536):
            found += part
    carrying.join(60.0)
    source.close()
    target.close()

    assert found == sent
    assert clock.now - 100.0 >= 0.0255
