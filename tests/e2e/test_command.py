"""Test the command against a running suite."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

from PIL import Image, ImageChops, ImageStat

from pentimento.images.png import HEADER_END, png_chunk
from pentimento.sdk.generated_image import read_provenance, without_provenance
from pentimento.supervisor.local import LocalSuite
from pentimento.supervisor.models import WEIGHTS
from tests.support.tiny_models import size_px

COMMAND = (sys.executable, "-m", "pentimento.cli")


def run(suite: LocalSuite, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *arguments, "--state-dir", str(suite.state.path)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_generate_saves_image_with_provenance(suite: LocalSuite, tmp_path: Path) -> None:
    output = tmp_path / "star.png"

    done = run(suite, "generate", "a yellow star", "--steps", "4", "--seed", "5", "--no-cache", "-o", str(output))

    assert done.returncode == 0, done.stderr
    width_px, height_px = size_px()
    assert done.stdout.startswith(f"{output}  {width_px}×{height_px}, tiny-heavy, seed 5, 4 steps")
    assert read_provenance(output.read_bytes())["spec"]["prompt"] == "a yellow star"


def test_other_users_may_read_only_the_saved_image(suite: LocalSuite, tmp_path: Path) -> None:
    output = tmp_path / "star.png"
    before = os.umask(0o022)

    run(suite, "generate", "a yellow star", "--steps", "4", "-o", str(output))

    os.umask(before)
    # The walk may reach removed folders, because an index is being built.
    kept = [Path(folder, name) for folder, folders, files in os.walk(suite.state.path) for name in (*folders, *files)]
    assert [path for path in (suite.state.path, *kept) if is_open_to_others(path)] == []
    assert any(path.suffix == ".sqlite" for path in kept)
    assert output.stat().st_mode & 0o777 == 0o644


def is_open_to_others(path: Path) -> bool:
    """Return whether other users may read, write or execute `path`; False for a file removed since it was listed."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    return bool(mode & 0o077) and not stat.S_ISLNK(mode)


def test_generate_as_json(suite: LocalSuite, tmp_path: Path) -> None:
    output = tmp_path / "star.png"

    done = run(suite, "generate", "a yellow star", "--steps", "4", "--no-cache", "--json", "-o", str(output))

    document = json.loads(done.stdout)
    assert document["file"] == str(output)
    assert document["spec"]["num_inference_steps"] == 4


def test_init_image_with_half_strength_runs_half_the_steps(suite: LocalSuite, tmp_path: Path) -> None:
    first, second = tmp_path / "first.png", tmp_path / "second.png"
    run(suite, "generate", "a yellow star", "--steps", "4", "--seed", "3", "--no-cache", "-o", str(first))

    done = run(
        suite,
        "generate",
        "a red star",
        "--steps",
        "8",
        "--init-image",
        str(first),
        "--strength",
        "0.5",
        "-o",
        str(second),
    )

    assert done.returncode == 0, done.stderr
    assert read_provenance(second.read_bytes())["steps_run"] == 4


def test_several_prompts_and_images_change_only_masked_region(suite: LocalSuite, tmp_path: Path) -> None:
    first, mask = tmp_path / "first.png", tmp_path / "mask.png"
    run(suite, "generate", "a yellow star", "--steps", "4", "--seed", "3", "--no-cache", "-o", str(first))
    width, height = size_px()
    white_left = Image.new("L", (width, height), 0)
    white_left.paste(255, (0, 0, width // 2, height))
    white_left.save(mask)
    over = ("--init-image", str(first), "--mask", str(mask), "--strength", "1", "--steps", "4", "--seed", "7")
    many = ("--count", "2", "--output-dir", str(tmp_path / "many"), "--json")

    done = run(suite, "generate", "a red star", "a blue ring", *over, *many)

    assert (done.returncode, done.stderr) == (0, "")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["prompt_number"], line["image_index"], line["spec"]["seed"]) for line in lines] == [
        (1, 0, 7),
        (1, 1, 8),
        (2, 0, 7),
        (2, 1, 8),
    ]
    for line in lines:
        generated, kept = (change(first, Path(line["file"]), left) for left in (0, 3 * width // 4))
        assert kept < generated / 2, line["file"]


def change(one: Path, other: Path, left: int) -> float:
    """Return the mean difference of the two images' levels in a quarter of their width."""
    with Image.open(one) as first, Image.open(other) as second:
        box = (left, 0, left + first.width // 4, first.height)
        difference = ImageChops.difference(first.convert("RGB").crop(box), second.convert("RGB").crop(box))
    return sum(ImageStat.Stat(difference).mean)


def test_replay_of_saved_image_gives_equal_bytes(suite: LocalSuite, tmp_path: Path) -> None:
    first, again = tmp_path / "first.png", tmp_path / "first-replay.png"
    run(suite, "generate", "a yellow star", "--steps", "4", "--seed", "5", "-o", str(first))

    done = run(suite, "replay", str(first))

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == f"the same pixels as {first}, and the same bytes"
    assert without_provenance(again.read_bytes()) == without_provenance(first.read_bytes())
    asked = read_provenance(first.read_bytes())["request_id"]
    assert read_provenance(again.read_bytes())["route"]["replay_of"] == asked


def test_pinned_image_is_replayed_with_its_init_image(suite: LocalSuite, tmp_path: Path) -> None:
    first, second = tmp_path / "first.png", tmp_path / "second.png"
    run(suite, "generate", "a yellow star", "--steps", "4", "--seed", "3", "--no-cache", "-o", str(first))
    from_first = ("generate", "a red star", "--steps", "8", "--init-image", str(first), "-o", str(second))
    assert run(suite, *from_first, "--pin", "1h").returncode == 0

    pinned, again = run(suite, "pin", str(second), "--for", "2h"), run(suite, "replay", str(second))
    unpinned = run(suite, "unpin", str(second))

    assert (pinned.returncode, pinned.stderr) == (0, "")
    assert pinned.stdout.startswith(f"{second} can be replayed until 20") and pinned.stdout.endswith("bytes pinned)\n")
    assert (again.returncode, again.stdout.splitlines()[-1]) == (0, f"the same pixels as {second}, and the same bytes")
    assert (unpinned.returncode, unpinned.stdout) == (0, f"{second} is unpinned\n")
    too_long = run(suite, "pin", str(second), "--for", "9999d")
    assert (too_long.returncode, too_long.stderr.startswith("pentimento: duration_ms: must be between 1 and")) == (
        1,
        True,
    )


def test_replay_of_unknown_request_is_not_found(suite: LocalSuite, tmp_path: Path) -> None:
    first = tmp_path / "first.png"
    run(suite, "generate", "a yellow star", "--steps", "4", "-o", str(first))
    known = read_provenance(first.read_bytes())["request_id"].encode()
    forged = without_provenance(first.read_bytes())
    text = json.dumps({"request_id": "r-" + "0" * 32}).encode()
    first.write_bytes(forged[:HEADER_END] + png_chunk(b"iTXt", b"pentimento" + bytes(5) + text) + forged[HEADER_END:])

    done = run(suite, "replay", str(first))

    assert known not in first.read_bytes()
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == ["pentimento: request_id: there is no such request"]


def test_invalid_field_prints_one_line(suite: LocalSuite, tmp_path: Path) -> None:
    output = tmp_path / "never.png"

    done = run(suite, "generate", "a yellow star", "--steps", "0", "-o", str(output))

    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "num_inference_steps" in done.stderr
    assert not output.exists()


def test_interrupt_cancels_on_the_server(suite: LocalSuite, tmp_path: Path) -> None:
    before = status(suite)["frontdoor"]
    arguments = [
        "generate",
        "a star",
        "--steps",
        "1000",
        "--no-cache",
        "--preview",
        "1",
        "-o",
        str(tmp_path / "never.png"),
    ]
    # A shell that runs the tests in the background makes their processes ignore interrupts.
    direct = ["env", "--default-signal=INT", *COMMAND]
    command = subprocess.Popen([*direct, *arguments, "--state-dir", str(suite.state.path)], stderr=subprocess.DEVNULL)
    while not (tmp_path / "never-preview.png").exists():
        assert command.poll() is None
        time.sleep(0.01)

    command.send_signal(signal.SIGINT)

    assert command.wait(120) == 130
    while cancelled(status(suite)["frontdoor"]) == cancelled(before):
        pass
    assert not (tmp_path / "never.png").exists()


def cancelled(frontdoor: dict[str, object]) -> int:
    return int(str(frontdoor.get("cancelled_count", 0)))


def status(suite: LocalSuite) -> dict[str, dict[str, object]]:
    """Return the status once every process has answered: a busy one may be late."""
    while True:
        done = run(suite, "status", "--json")
        assert done.returncode == 0, done.stderr
        document = dict(json.loads(done.stdout))
        if not document["unanswered"]:
            return document


def test_model_is_registered_listed_and_removed(suite: LocalSuite) -> None:
    added = run(suite, "models", "add", "heavy", "tiny-heavy")
    taken = run(suite, "models", "add", "heavy", "tiny-light")
    listed = json.loads(run(suite, "models", "list", "--json").stdout)
    removed = run(suite, "models", "remove", "heavy")

    assert (added.returncode, removed.returncode) == (0, 0), added.stderr + removed.stderr
    held = json.loads((WEIGHTS / "registry.json").read_text())["models"]
    digest = next(entry["digest"] for entry in held if entry["name"] == "tiny-heavy")
    assert [(entry["name"], entry["digest"]) for entry in listed["models"]] == [("heavy", digest)]
    assert (taken.returncode, taken.stderr.count("heavy is registered with other digest, files")) == (1, 1)


def live_replicas(document: dict[str, dict[str, object]]) -> list[str]:
    replicas = document["fleet"]["replicas"]
    assert isinstance(replicas, list)
    return sorted(replica["replica"]["instance_id"] for replica in replicas if replica["live"])


def test_status_knows_every_process(suite: LocalSuite) -> None:
    # A busy process may miss a report, and is listed again after the next one.
    while len(live_replicas(document := status(suite))) < 5:
        pass

    assert live_replicas(document) == ["controlnet-0", "embedder", "frontdoor", "gateway", "tiny-heavy-0"]
    assert document["frontdoor"]["frontdoor_id"]


def test_status_for_people(suite: LocalSuite) -> None:
    # A busy process may answer late, and is then reported as silent.
    while "does not answer" in (done := run(suite, "status")).stdout:
        assert done.returncode == 0, done.stderr

    assert done.returncode == 0, done.stderr
    for word in ("tiny-heavy-0", "plan", "requests", "cache"):
        assert word in done.stdout
