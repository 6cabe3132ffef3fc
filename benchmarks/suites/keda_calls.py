"""Call an external scaler from a process outside of the suite, with stubs made from the contract's text."""

import json
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from grpc_tools import protoc

from benchmarks.suites import keda_client
from lab.fixtures.certificates import Pair
from lab.runs.machine import ROOT

CONTRACT = ROOT / "protos" / "pentimento" / "api" / "keda" / "externalscaler.proto"
LIMIT_S = 60.0


def make_stubs(folder: Path) -> Path:
    """Write the client's stubs into a new folder, and return it."""
    folder.mkdir()
    arguments = [f"-I{CONTRACT.parent}", f"--python_out={folder}", f"--grpc_python_out={folder}", CONTRACT.name]
    assert protoc.main(["protoc", *arguments]) == 0, "protoc failed"
    return folder


class KedaClient:
    """A client's process. Answers arrive in order; messages of streams are kept by RPC."""

    def __init__(self, stubs: Path, address: str, authority: Path, pair: Pair | None) -> None:
        shown = [str(pair.certificate), str(pair.key)] if pair is not None else []
        command = [sys.executable, "-P", keda_client.__file__, str(stubs), address, str(authority), *shown]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self.pushes: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def call(self, rpc: str, metadata: dict[str, str], metric: str = "") -> dict[str, Any]:
        """Return the answer of a unary RPC, or the error's code and message."""
        self._send(rpc, metadata, metric)
        return self._answers.get(timeout=LIMIT_S)

    def follow(self, rpc: str, metadata: dict[str, str]) -> dict[str, Any]:
        """Open a stream, and return its first message."""
        self._send(rpc, metadata, "")
        return self.pushes.get(timeout=LIMIT_S)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def _send(self, rpc: str, metadata: dict[str, str], metric: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"rpc": rpc, "metadata": metadata, "metric": metric}) + "\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            (self.pushes if "stream" in answer else self._answers).put(answer)
