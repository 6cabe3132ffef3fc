"""`make demo`: the whole suite on this machine, a few pictures through all of it, and everything stopped again.

The first prompt finds an empty cache and starts from noise; the second is a near-repeat and starts from a latent of the
first. Pictures are saved with their provenance; `demo-pictures/demo.json` holds what the summary shows.
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
# A picture's cache entry is committed just after the picture was answered.
TRIES_FOR_A_HIT = 5


@dataclass(frozen=True)
class Painted:
    prompt: str
    picture: GeneratedImage
    seconds: float
    file: Path

    @property
    def start(self) -> str:
        saved = self.picture.provenance.steps_saved
        return f"the cache, {saved} steps saved" if saved else "noise"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo-pictures"), help="where the pictures go")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    console = Console()
    console.print("Starting embedder, gateway, controller, worker and frontdoor …")
    with local_suite() as suite:
        console.print(f"All serve after {suite.start_s:.1f} s. Painting {len(SCENES)} pictures …")
        with Client(suite.endpoint.public) as client:
            painted = paint_all(client, out)
        console.print(summary(painted))
    write_record(painted, out)
    hits = sum(one.picture.provenance.steps_saved > 0 for one in painted)
    console.print(f"{len(painted)} pictures in {out}/, {hits} started from the cache; all processes are stopped.")
    return 0 if hits and len(painted) == len(SCENES) else 1


def paint_all(client: Client, out: Path) -> list[Painted]:
    first = paint(client, SCENES[0], out)
    second = paint_with_cache(client, SCENES[1], out)
    return [first, second, *(paint(client, scene, out) for scene in SCENES[2:])]


def paint(client: Client, scene: Scene, out: Path) -> Painted:
    started = time.perf_counter()
    picture = client.generate(ImageRequest(scene.prompt, seed=scene.seed, num_inference_steps=STEPS))
    seconds = time.perf_counter() - started
    return Painted(scene.prompt, picture, seconds, picture.save(out / f"{scene.name}.png"))


def paint_with_cache(client: Client, scene: Scene, out: Path) -> Painted:
    """The near-repeat, asked again should the first entry not be findable yet."""
    for _ in range(TRIES_FOR_A_HIT):
        painted = paint(client, scene, out)
        if painted.picture.provenance.steps_saved:
            break
    return painted


def summary(painted: list[Painted]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("prompt", "started from", "steps", "seconds", "file"):
        table.add_column(heading)
    for one in painted:
        steps = str(one.picture.provenance.steps_run)
        table.add_row(one.prompt, one.start, steps, f"{one.seconds:.2f}", one.file.name)
    return table


def write_record(painted: list[Painted], out: Path) -> None:
    record = [
        {"file": one.file.name, "seconds": one.seconds, **provenance_as_json(one.picture.provenance)} for one in painted
    ]
    (out / "demo.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
