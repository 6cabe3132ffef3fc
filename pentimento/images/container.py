"""Share the limit and the error of the containers' readers."""

# More parts than any encoder writes for an image of a few megabytes; walking them takes milliseconds.
MAX_PARTS = 4096


class BadImage(Exception):
    """Report a container that is damaged, or has unsupported content; the message names the fault."""


def require(condition: bool, otherwise: str) -> None:
    """Raise BadImage with the message `otherwise` unless the condition holds."""
    if not condition:
        raise BadImage(otherwise)
