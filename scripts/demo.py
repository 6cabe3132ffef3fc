"""`make demo`: start the whole suite on this machine, generate a few images, and stop it again.

The first prompt finds an empty cache and starts from noise; the second is a near-repeat and starts from a latent of the
first. Images are saved with their provenance; `demo-images/demo.json` has the summary's values.
"""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pentimento.domain.image_request import ImageRequest
from pentimento.domain.provenance_document import provenance_as_json
from pentimento.sdk import Client, GeneratedImage
from pentimento.supervisor.local import local_suite

STEPS = 50


@dataclass(frozen=True)
class Scene:
    name: str
    prompt: str
    seed: int


SCENES = (
    Scene("circle", "a large red circle in the centre on a white background", 1),
    Scene("circle-again", "a big red circle in the middle on a white background", 2),
    Scene("star", "a small yellow star at the top in the sky", 3),
    Scene("pair", "a blue square to the left of a green triangle on black", 4),
)
# An image's cache entry is committed just after its answer.
TRIES_FOR_A_HIT = 5


@dataclass(frozen=True)
class DemoImage:
    prompt: str
    image: GeneratedImage
    seconds: float
    file: Path

    @property
    def start(self) -> str:
        saved = self.image.provenance.steps_saved
        return f"the cache, {saved} steps saved" if saved else "noise"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo-images"), help="folder of the images")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    console = Console()
    console.print("Starting embedder, gateway, controller, worker and frontdoor …")
    with local_suite() as suite:
        console.print(f"All serve after {suite.start_s:.1f} s. Generating {len(SCENES)} images …")
        with Client(suite.endpoint.public) as client:
            images = generate_all(client, out)
        console.print(summary(images))
    write_record(images, out)
    hits = sum(one.image.provenance.steps_saved > 0 for one in images)
    console.print(f"{len(images)} images in {out}/, {hits} started from the cache; all processes are stopped.")
    return 0 if hits and len(images) == len(SCENES) else 1


def generate_all(client: Client, out: Path) -> list[DemoImage]:
    first = generate(client, SCENES[0], out)
    second = generate_with_cache(client, SCENES[1], out)
    return [first, second, *(generate(client, scene, out) for scene in SCENES[2:])]


def generate(client: Client, scene: Scene, out: Path) -> DemoImage:
    started = time.perf_counter()
    image = client.generate(ImageRequest(scene.prompt, seed=scene.seed, num_inference_steps=STEPS))
    seconds = time.perf_counter() - started
    return DemoImage(scene.prompt, image, seconds, image.save(out / f"{scene.name}.png"))


def generate_with_cache(client: Client, scene: Scene, out: Path) -> DemoImage:
    """Generate the near-repeat, again if the first entry is not findable yet."""
    for _ in range(TRIES_FOR_A_HIT):
        found = generate(client, scene, out)
        if found.image.provenance.steps_saved:
            break
    return found


def summary(images: list[DemoImage]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("prompt", "started from", "steps", "seconds", "file"):
        table.add_column(heading)
    for one in images:
        steps = str(one.image.provenance.steps_run)
        table.add_row(one.prompt, one.start, steps, f"{one.seconds:.2f}", one.file.name)
    return table


def write_record(images: list[DemoImage], out: Path) -> None:
    record = [
        {"file": one.file.name, "seconds": one.seconds, **provenance_as_json(one.image.provenance)} for one in images
    ]
    (out / "demo.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
