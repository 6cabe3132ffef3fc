"""What a terminal says of itself when it is asked (primary device attributes, DA1)."""

import os
import re
import select
import sys
import termios
import time
import tty

QUESTION = b"\x1b[c"
ANSWER = re.compile(rb"\x1b\[\?([\d;]*)c")
# How long a terminal may take; one behind a slow line is taken for one without pictures.
ANSWER_LIMIT_S = 0.5
MAX_ANSWER_BYTES = 256
SIXEL_ATTRIBUTE = "4"


def shows_sixels(limit_s: float = ANSWER_LIMIT_S) -> bool:
    """Return whether the terminal of this process says that it shows sixels; False where there is none."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    return SIXEL_ATTRIBUTE in attributes_of(sys.stdin.fileno(), sys.stdout.fileno(), limit_s)


def attributes_of(source: int, target: int, limit_s: float) -> list[str]:
    """Return the attributes that a terminal names, none where it does not answer in time. What it is typed meanwhile is
    not shown, and its mode is what it was before."""
    before = termios.tcgetattr(source)
    try:
        tty.setcbreak(source, termios.TCSANOW)
        os.write(target, QUESTION)
        found = ANSWER.search(_answer(source, time.monotonic() + limit_s))
    finally:
        termios.tcsetattr(source, termios.TCSANOW, before)
    return found[1].decode().split(";") if found else []


def _answer(source: int, until_s: float) -> bytes:
    """Return what comes until the answer is whole."""
    got = b""
    while len(got) < MAX_ANSWER_BYTES and not ANSWER.search(got):
        ready, _, _ = select.select([source], [], [], max(until_s - time.monotonic(), 0.0))
        if not ready:
            break
        got += os.read(source, MAX_ANSWER_BYTES)
    return got
