"""Text as SVG and HTML may carry it."""

import re
from html import escape

# XML 1.0, production 2: nothing else may stand in a document, not even as a reference.
_NO_CHARACTER = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def escaped(text: str) -> str:
    """Return the text with escaped markup; � replaces characters that XML forbids, such as control characters."""
    return escape(_NO_CHARACTER.sub("\N{REPLACEMENT CHARACTER}", text))
