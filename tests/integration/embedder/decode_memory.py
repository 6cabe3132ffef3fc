"""How far the memory of a process rises over the decoding of one image: `python -m ... FILE`, prints bytes."""

import resource
import sys
from pathlib import Path

from services.embedder.preprocessing import ImageLimits, ImagePreprocessing, decode, to_pixels


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    data = Path(sys.argv[1]).read_bytes()
    before = peak_bytes()
    to_pixels(decode(data, "images[0]", ImageLimits()), ImagePreprocessing())
    print(peak_bytes() - before)
