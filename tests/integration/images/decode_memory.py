"""Measure how far the memory of a process rises while it decodes images, as the worker and as the embedder do, and the
first image for eight callers together: `python -m ... FOLDER`, prints bytes."""

import resource
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pentimento.diffusion.images import decode_pixels
from pentimento.diffusion.preprocessing import ImagePreprocessing, to_pixels
from pentimento.images.decoding import decode

CALLERS = 8


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def as_embedder(data: bytes) -> None:
    decode(data, "images[0]", lambda image: to_pixels(image, ImagePreprocessing()))


def as_worker(data: bytes) -> None:
    decode_pixels(data, "init_image.image", 512, 512)


if __name__ == "__main__":
    files = [path.read_bytes() for path in sorted(Path(sys.argv[1]).iterdir())]
    with ThreadPoolExecutor(CALLERS) as pool:
        before = peak_bytes()
        for data in files:
            as_embedder(data)
            as_worker(data)
        list(pool.map(as_worker, [files[0]] * CALLERS))
    print(peak_bytes() - before)
