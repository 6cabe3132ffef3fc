"""Draw the diagrams of the pages on concepts, as SVG: `docs/images/concepts/NAME.svg`.

    python scripts/draw_diagrams.py            # writes them
    python scripts/draw_diagrams.py --check    # exits 1 and lists the outdated ones

Every diagram is a function here, so that a change can be reviewed.
"""

import argparse
import sys
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "images" / "concepts"
INK, FAINT = "#1f2933", "#7b8794"
PLAIN, WARM, COOL, GREEN = "#ffffff", "#fff3d6", "#e3f0fb", "#e4f5e6"
LINE_PX = 17


@dataclass
class Drawing:
    """Draw on a white canvas of a given size in pixels; `says` is the text for readers who cannot see it."""

    width_px: int
    height_px: int
    says: str
    parts: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, width: float, height: float, text: str = "", fill: str = PLAIN) -> None:
        """Add a box with its lines of text in the middle."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" fill="{fill}" stroke="{INK}"/>'
        )
        lines = text.split("\n") if text else []
        first = y + height / 2 - LINE_PX * (len(lines) - 1) / 2 + 5
        for number, line in enumerate(lines):
            self.text(
                x + width / 2, first + LINE_PX * number, line, anchor="middle", bold=number == 0 and len(lines) > 1
            )

    def text(
        self, x: float, y: float, text: str, *, anchor: str = "start", bold: bool = False, faint: bool = False
    ) -> None:
        """Add a line of text with its baseline at `y`."""
        weight = ' font-weight="600"' if bold else ""
        ink = FAINT if faint else INK
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{ink}"{weight}>{escape(text)}</text>'
        )

    def arrow(self, points: list[tuple[float, float]], label: str = "", *, dashed: bool = False) -> None:
        """Add an arrow through points, with its label above the middle of its first segment."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{INK}"{dashes} marker-end="url(#tip)"/>')
        if label:
            (x1, y1), (x2, y2) = points[:2]
            self.text((x1 + x2) / 2, (y1 + y2) / 2 - 6, label, anchor="middle")

    def ticks(self, x: float, y: float, steps: list[str], width: float = 22) -> None:
        """Add a row of denoising steps: "full", "saved" (reused or skipped) or "late" (another model's)."""
        for number, kind in enumerate(steps):
            fill = {"full": COOL, "saved": PLAIN, "late": WARM}[kind]
            dashes = ' stroke-dasharray="2 2"' if kind == "saved" else ""
            self.parts.append(
                f'<rect x="{x + number * width:g}" y="{y:g}" width="{width - 4:g}" height="24" rx="2" fill="{fill}"'
                f' stroke="{FAINT if kind == "saved" else INK}"{dashes}/>'
            )

    def svg(self) -> str:
        """Return the file."""
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width_px} {self.height_px}"'
                f' width="{self.width_px}" height="{self.height_px}"'
                ' font-family="system-ui, sans-serif" font-size="13">',
                f"<title>{escape(self.says)}</title>",
                f'<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7"'
                f' orient="auto-start-reverse"><path d="M0 0 L10 5 L0 10 z" fill="{INK}"/></marker></defs>',
                f'<rect width="{self.width_px}" height="{self.height_px}" fill="#ffffff"/>',
                *self.parts,
                "</svg>\n",
            ]
        )


def life_of_a_request() -> Drawing:
    drawing = Drawing(
        900,
        370,
        "A request goes from the client to the frontdoor, which asks the embedder for a vector and the gateway for a "
        "start, sends an attempt to a worker, stores the image and answers; the controller only watches and plans.",
    )
    drawing.box(10, 130, 90, 60, "client")
    drawing.box(150, 60, 100, 50, "edge\nHTTP", COOL)
    drawing.box(300, 115, 140, 90, "frontdoor\nvalidates, queues,\nanswers", COOL)
    drawing.box(530, 20, 160, 56, "embedder\nprompt → vector", WARM)
    drawing.box(530, 112, 160, 56, "vectordb_gateway\na cached start?", WARM)
    drawing.box(530, 204, 160, 64, "unet_worker\nsteps, decode,\nencode", GREEN)
    drawing.box(765, 204, 125, 64, "controlnet_svc\nresiduals", GREEN)
    drawing.box(765, 112, 125, 56, "object store\nlatents, images")
    drawing.box(300, 255, 140, 40, "journal")
    drawing.box(300, 322, 390, 38, "controller: who holds which model, thresholds, shares", PLAIN)
    drawing.arrow([(55, 130), (55, 85), (150, 85)], "")
    drawing.text(62, 78, "HTTP")
    drawing.arrow([(250, 85), (330, 85), (330, 115)])
    drawing.arrow([(100, 160), (300, 160)], "1  gRPC")
    drawing.arrow([(370, 205), (370, 255)])
    drawing.text(378, 235, "2")
    drawing.arrow([(440, 130), (490, 130), (490, 48), (530, 48)])
    drawing.text(498, 42, "3")
    drawing.arrow([(440, 145), (530, 145)])
    drawing.text(510, 139, "4", anchor="middle")
    drawing.arrow([(440, 180), (490, 180), (490, 236), (530, 236)])
    drawing.text(498, 230, "5")
    drawing.arrow([(690, 236), (765, 236)], "each step")
    drawing.arrow([(650, 204), (650, 184), (827, 184), (827, 168)])
    drawing.arrow([(300, 185), (100, 185)])
    drawing.text(200, 202, "6  the image", anchor="middle")
    drawing.arrow([(640, 322), (640, 268)], dashed=True)
    drawing.arrow([(470, 322), (470, 215), (430, 205)], dashed=True)
    return drawing


def approximate_caching() -> Drawing:
    drawing = Drawing(
        880,
        330,
        "An image from noise takes all steps and leaves latents in the cache. A near prompt continues from such a "
        "latent and saves the steps before it. Another starts from a finished image, with noise added, and takes few.",
    )
    x, width = 220, 26
    drawing.text(10, 46, "from noise", bold=True)
    drawing.text(10, 64, "“a red circle”")
    drawing.ticks(x, 36, ["full"] * 20, width)
    drawing.text(x + 20 * width + 8, 54, "→ image A")
    for step in (4, 8, 12):
        drawing.arrow([(x + step * width - 2, 60), (x + step * width - 2, 96)])
    drawing.box(x, 96, 20 * width - 4, 34, "cache: latents of A after K = 4, 8, 12 steps, and the image itself", WARM)
    drawing.arrow(
        [(x + 20 * width - 20, 130), (x + 20 * width - 20, 246), (x + 13 * width + 8, 246), (x + 13 * width + 8, 264)]
    )
    drawing.text(10, 186, "from a latent", bold=True)
    drawing.text(10, 204, "“a large red circle”")
    drawing.ticks(x, 176, ["saved"] * 8 + ["full"] * 12, width)
    drawing.arrow([(x + 8 * width - 2, 130), (x + 8 * width - 2, 174)])
    drawing.text(x + 8 * width + 6, 156, "x₈")
    drawing.text(x + 20 * width + 8, 194, "→ image B")
    drawing.text(x, 222, "8 steps are saved: the latent of A stands for them", faint=True)
    drawing.text(10, 276, "from an image", bold=True)
    drawing.text(10, 294, "“a red circle, small”")
    drawing.ticks(x, 266, ["saved"] * 13 + ["late"] * 7, width)
    drawing.text(x + 13 * width + 16, 240, "A, with noise added")
    drawing.text(x + 20 * width + 8, 284, "→ image C")
    drawing.text(x, 312, "a smaller model may take the steps that are left", faint=True)
    return drawing


def cascades() -> Drawing:
    drawing = Drawing(
        880,
        270,
        "The light model generates first. A discriminator scores its image: at or above the threshold it is the "
        "answer, below it the heavy model generates. Prompts that are surely hard go to the heavy model at once.",
    )
    drawing.box(10, 80, 100, 50, "request")
    drawing.box(190, 75, 130, 60, "light model\nquick", GREEN)
    drawing.box(400, 75, 140, 60, "discriminator\nconfidence 0..1", WARM)
    drawing.box(640, 180, 130, 60, "heavy model\ngood", GREEN)
    drawing.box(790, 80, 80, 50, "answer")
    drawing.arrow([(110, 105), (190, 105)])
    drawing.arrow([(320, 105), (400, 105)], "image")
    drawing.arrow([(540, 105), (790, 105)], "at least the threshold")
    drawing.arrow([(470, 135), (470, 200), (640, 200)])
    drawing.text(478, 190, "below: deferred")
    drawing.arrow([(770, 210), (830, 210), (830, 130)])
    drawing.arrow([(60, 130), (60, 225), (640, 225)], dashed=True)
    drawing.text(90, 244, "surely hard, by the prompt alone: the light stage is left out", faint=True)
    drawing.arrow([(470, 75), (470, 30), (830, 30), (830, 80)], dashed=True)
    drawing.text(490, 22, "too late for the heavy model: the light image is kept", faint=True)
    return drawing


def allocation() -> Drawing:
    drawing = Drawing(
        880,
        300,
        "The demand, by kinds of start, is shared among routes; a route uses pools of devices. The controller finds "
        "the shares, thresholds, models and batch sizes, and frontdoors and workers follow the plan.",
    )
    drawing.text(10, 24, "demand", bold=True)
    for number, name in enumerate(("from noise", "from a latent", "from an image")):
        drawing.box(10, 40 + 60 * number, 120, 40, name)
    drawing.text(230, 24, "routes", bold=True)
    for number, name in enumerate(("light, then heavy\nthreshold 0.6", "heavy alone", "light alone")):
        drawing.box(230, 36 + 60 * number, 170, 48, name, WARM)
    drawing.text(510, 24, "pools", bold=True)
    drawing.box(510, 40, 170, 62, "light, batches of 8\n5 devices", GREEN)
    drawing.box(510, 130, 170, 62, "heavy, batches of 4\n11 devices", GREEN)
    for start, ends in ((60, (60, 120)), (120, (120, 180)), (180, (180,))):
        for end in ends:
            drawing.arrow([(130, start), (230, end)])
    for start, ends in ((60, (70, 150)), (120, (162,)), (180, (85,))):
        for end in ends:
            drawing.arrow([(400, start), (510, end)])
    drawing.box(740, 60, 130, 110, "answers\nin time, good\nenough, few\ndevices", PLAIN)
    drawing.arrow([(680, 72), (740, 90)])
    drawing.arrow([(680, 160), (740, 140)])
    drawing.box(230, 240, 450, 44, "controller: a new plan when the demand or the fleet moves", COOL)
    drawing.arrow([(315, 240), (315, 206)], dashed=True)
    drawing.arrow([(595, 240), (595, 194)], dashed=True)
    drawing.arrow([(805, 170), (805, 262), (680, 262)], dashed=True)
    drawing.text(690, 282, "reports", faint=True)
    return drawing


def adapters() -> Drawing:
    drawing = Drawing(
        880,
        340,
        "In one process a request waits for its LoRA to load, and each step for its ControlNet. Here the LoRA loads "
        "beside the first steps, and the ControlNet computes elsewhere while the first half of the step does.",
    )
    drawing.text(10, 28, "all in one process", bold=True)
    drawing.box(20, 44, 150, 34, "load LoRA", WARM)
    x = 170.0
    for _ in range(4):
        drawing.box(x, 44, 62, 34, "control", WARM)
        drawing.box(x + 62, 44, 46, 34, "1st", COOL)
        drawing.box(x + 108, 44, 46, 34, "2nd", COOL)
        x += 154
    drawing.text(x + 8, 66, "…")
    drawing.text(10, 134, "here", bold=True)
    drawing.text(10, 168, "worker")
    drawing.text(10, 218, "controlnet_svc")
    drawing.text(10, 268, "LoRA")
    x = 130.0
    for number in range(6):
        drawing.box(x, 146, 46, 34, "1st", GREEN if number > 2 else COOL)
        drawing.box(x + 62, 146, 46, 34, "2nd", GREEN if number > 2 else COOL)
        drawing.box(x, 196, 60, 34, "control", WARM)
        drawing.arrow([(x + 60, 206), (x + 72, 182)])
        x += 108
    drawing.text(x + 8, 168, "…")
    drawing.box(130, 246, 190, 34, "load LoRA", WARM)
    drawing.arrow([(320, 262), (430, 262), (430, 184)])
    drawing.text(440, 266, "added to the weights, at the latest before a measured step")
    drawing.text(
        10, 318, "1st, 2nd: the halves of a step, between which a ControlNet's residuals are needed", faint=True
    )
    return drawing


def thinning() -> Drawing:
    drawing = Drawing(
        880,
        210,
        "All steps of a schedule, and the same schedule with steps left out after the first ones: those that stay keep "
        "their numbers and go on to the noise of the next one taken.",
    )
    x, width = 130, 30
    steps = range(24)
    kept = {*range(6), 8, 11, 14, 17, 20, 23}
    drawing.text(10, 58, "all steps")
    drawing.ticks(x, 42, ["full" for _ in steps], width)
    drawing.text(10, 118, "thinned")
    drawing.ticks(x, 102, ["full" if step in kept else "saved" for step in steps], width)
    for step in steps:
        drawing.text(x + step * width + width / 2 - 2, 90, str(step), anchor="middle", faint=step not in kept)
    drawing.text(x, 156, "the first steps decide what is seen:")
    drawing.text(x, 174, "all of them are taken")
    drawing.text(x + 9 * width, 156, "later ones mend what is there: as many may go")
    drawing.text(x + 9 * width, 174, "as were measured to do no harm")
    drawing.text(x, 200, "an example; which steps a model bears to leave out is measured for each", faint=True)
    return drawing


DIAGRAMS = (life_of_a_request, approximate_caching, cascades, allocation, adapters, thinning)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a diagram is out of date")
    check = parser.parse_args().check
    stale = []
    for draw in DIAGRAMS:
        path, text = FOLDER / f"{draw.__name__.replace('_', '-')}.svg", draw().svg()
        if not path.exists() or path.read_text() != text:
            stale.append(path.name)
            if not check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
    if check and stale:
        sys.exit("draw_diagrams: out of date, run `python scripts/draw_diagrams.py`: " + ", ".join(stale))


if __name__ == "__main__":
    main()
