"""Generate the images of the pages on concepts, `docs/images/concepts/*.png`, with the tiny models.

    python scripts/concept_images.py

It starts a suite and stops it again. The pages name the prompts and seeds.
"""

from pathlib import Path

from PIL import Image

from pentimento.domain.generation import FromLatent, FromNoise
from pentimento.sdk import AskedLora, CacheMode, Client, GeneratedImage, ImageRequest
from pentimento.supervisor.local import local_suite

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "images" / "concepts"
SCALE, GAP_PX = 3, 12
FIRST = "a large striped red heart in the centre on a white background"
NEAR = "a large striped red heart on a white background"
TRIES_FOR_A_HIT = 20
FLAGS = ("--model", "tiny-heavy", "--model", "tiny-light", "--adapters", "tiny")


def strip(generated: list[GeneratedImage], name: str) -> None:
    """Write enlarged images side by side."""
    images = [one.to_pil().convert("RGB") for one in generated]
    images = [image.resize((image.width * SCALE, image.height * SCALE), Image.Resampling.NEAREST) for image in images]
    step = images[0].width + GAP_PX
    page = Image.new("RGB", (step * len(images) - GAP_PX, images[0].height), "white")
    for number, image in enumerate(images):
        page.paste(image, (number * step, 0))
    page.save(FOLDER / f"{name}.png", optimize=True)


def hit(client: Client, seed: int) -> GeneratedImage:
    """Return an image that started from the first one's latent; an entry is findable only a moment after its image."""
    for _ in range(TRIES_FOR_A_HIT):
        image = client.generate(ImageRequest(NEAR, seed=seed, model="tiny-heavy"))
        if isinstance(image.provenance.route.start, FromLatent):
            return image
        assert isinstance(image.provenance.route.start, FromNoise)
    raise SystemExit(f"no hit in {TRIES_FOR_A_HIT} tries: {image.provenance.route.reason}")


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with local_suite(FLAGS) as suite, Client(suite.endpoint.public) as client:
        ancestor = client.generate(ImageRequest(FIRST, seed=3, model="tiny-heavy"))
        found = hit(client, 4)
        alone = client.generate(ImageRequest(NEAR, seed=4, model="tiny-heavy", cache=CacheMode.OFF))
        strip([ancestor, found, alone], "hit")
        print(f"hit: {found.provenance.steps_saved} steps saved; {found.provenance.route.reason}")
        hard = "a small dotted yellow star on the left of a large blue ring on a black background"
        asked = [ImageRequest(hard, seed=5, model=name, cache=CacheMode.OFF) for name in ("tiny-light", "tiny-heavy")]
        strip([client.generate(one) for one in asked], "light-and-heavy")
        plain = ImageRequest(FIRST, seed=3, model="tiny-heavy", cache=CacheMode.OFF)
        styled = [
            ImageRequest(FIRST, seed=3, model="tiny-heavy", cache=CacheMode.OFF, loras=(AskedLora(name),))
            for name in ("tiny-lora-neon", "tiny-lora-mosaic", "tiny-lora-blueprint")
        ]
        strip([client.generate(one) for one in (plain, *styled)], "loras")


if __name__ == "__main__":
    main()
