"""What the readers of the containers have in common."""

# More parts than any encoder writes for a picture of a few megabytes; walking them takes milliseconds.
MAX_PARTS = 4096


class BadPicture(Exception):
    """A container that is damaged, or holds what is not taken; the message says what."""


def require(condition: bool, otherwise: str) -> None:
    """Raises BadPicture saying what is wrong."""
    if not condition:
        raise BadPicture(otherwise)
