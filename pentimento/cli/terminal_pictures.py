"""Pictures in a terminal: by the protocols of kitty and iTerm, which take a PNG, or as sixels, which are drawn here."""

import base64
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import Enum

import click

from pentimento.cli.sixel import sixel_of
from pentimento.cli.terminal_asking import shows_sixels

_KITTY_CHUNK = 4096
# By what TERM begins with. Others are asked.
_SIXEL_TERMINALS = ("foot", "mlterm", "contour", "yaft")


class PictureProtocol(Enum):
    """How a terminal is told to show a picture."""

    KITTY = "kitty"
    ITERM = "iterm"
    SIXEL = "sixel"


def protocol_of(environment: Mapping[str, str]) -> PictureProtocol | None:
    """Return the protocol of the terminal that these variables tell of; None where none is known to show pictures."""
    program, kind = environment.get("TERM_PROGRAM", ""), environment.get("TERM", "")
    if environment.get("KITTY_WINDOW_ID") or "kitty" in kind or "ghostty" in (program, kind.removeprefix("xterm-")):
        return PictureProtocol.KITTY
    if program in ("iTerm.app", "WezTerm", "mintty"):
        return PictureProtocol.ITERM
    return PictureProtocol.SIXEL if kind.startswith(_SIXEL_TERMINALS) or "sixel" in kind else None


def escape_of(png: bytes, protocol: PictureProtocol) -> str:
    """Return what shows a PNG where the cursor is."""
    if protocol is PictureProtocol.SIXEL:
        return sixel_of(png)
    data = base64.b64encode(png).decode()
    if protocol is PictureProtocol.ITERM:
        return f"\x1b]1337;File=inline=1;size={len(png)};preserveAspectRatio=1:{data}\a"
    return "".join(_kitty_commands(data))


def show_picture(png: bytes, protocol: PictureProtocol) -> None:
    """Write a PNG to the terminal, on lines of its own, past whoever has taken standard output over."""
    out = sys.__stdout__
    if out is not None:
        out.write(f"\r\x1b[2K{escape_of(png, protocol)}\n")
        out.flush()


def wanted_protocol(environment: Mapping[str, str], asked: Callable[[], bool] = shows_sixels) -> PictureProtocol:
    """Return the terminal's protocol: as its variables tell, or as it says itself when it is `asked` for sixels. Raises
    UsageError where it has none."""
    protocol = protocol_of(environment)
    if protocol is None and asked():
        protocol = PictureProtocol.SIXEL
    if protocol is None:
        known = "kitty, iTerm, those with sixels and their likes are; --show-as names a protocol"
        raise click.UsageError(f"--show: this terminal is not known to show pictures ({known})")
    return protocol


def _kitty_commands(data: str) -> Iterator[str]:
    for start in range(0, len(data), _KITTY_CHUNK):
        first = "a=T,f=100," if start == 0 else ""
        more = int(start + _KITTY_CHUNK < len(data))
        yield f"\x1b_G{first}m={more};{data[start : start + _KITTY_CHUNK]}\x1b\\"
