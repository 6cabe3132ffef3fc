"""Run commands with closed standard input, output or error."""

import os
import shlex
import subprocess
import sys


def test_closed_standard_stream_is_not_reused_for_file() -> None:
    script = "import os; from pentimento.cli import open_closed_streams as o; o(); print(os.open('/', 0), file=LEFT)"
    command = [sys.executable, "-c", f"LEFT = open(3, 'w'); {script}"]
    read, write = os.pipe()
    left = f"{shlex.join(command)} 3>&{write} {write}>&- <&- >&- 2>&-"

    subprocess.run(["bash", "-c", left], pass_fds=[write], check=True, timeout=60)
    os.close(write)
    with os.fdopen(read) as told:
        assert int(told.read()) > 3


def test_prompts_of_a_standard_input_that_is_closed_are_none() -> None:
    command = shlex.join([sys.executable, "-m", "pentimento.cli", "generate", "--prompts-file", "-"])

    done = subprocess.run(["bash", "-c", f"{command} <&-"], capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2,
        "Error: give a prompt: PROMPT, or --prompts-file FILE",
    )
