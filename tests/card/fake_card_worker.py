"""A worker without a card that loses itself in every way a real one can: what to do is in the candidate's config.

It speaks the real protocol through the real ``serve``; only the session is made up. In the scratch folder ``sick``
holds how many more self tests fail, ``free`` the free memory that is reported, ``uuid`` the card, and ``deeds`` what
real configs do, by some of their knobs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tuner.card.worker.main import Channel, private_stdout, serve
from tuner.card.worker.protocol import Refused
from tuner.trials.outcome import Status

UUID = "GPU-fake"
FREE = 100 << 30
CRASHES = {
    "segfault": signal.SIGSEGV,
    "abort": signal.SIGABRT,
    "killed": signal.SIGKILL,
    "terminated": signal.SIGTERM,
}


class FakeSession:
    def __init__(self, scratch: Path, channel: Channel, raw: Callable[[str], None]) -> None:
        self._scratch, self._channel, self._raw = scratch, channel, raw

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        with (self._scratch / "log").open("a") as log:
            log.write(f"{os.getpid()} {request['op']}\n")
        if request["op"] == "health":
            return {"health": self._health()}
        entry = request.get("candidate") or request["entries"][0]["candidate"]
        phase, _, deed = self._deed_of(entry["config"]).partition(":")
        self._channel.phase(phase)
        self._do(deed)
        if request["op"] == "check":
            return {"report": [report(case) for case in request["cases"]]}
        one = {**SAMPLES, "us": [10.0 + number for number in range(7)]}
        return {"samples": one if request["op"] == "time" else [one for _ in request["entries"]]}

    def forget_old(self) -> None:
        pass

    def _health(self) -> dict[str, Any]:
        left = int(self._read("sick", "0"))
        if left:
            (self._scratch / "sick").write_text(str(left - 1))
            raise Refused(Status.FAILED, "a matrix product of small integers is wrong", fatal=True)
        return {
            "uuid": self._read("uuid", UUID),
            "name": "Fake card",
            "sm_count": 132,
            "compute_capability": [9, 0],
            "l2_bytes": 60 << 20,
            "driver": "580.1",
            "cuda": "13.0",
            "policy": "power limit 700 W",
            "total_bytes": 141 << 30,
            "free_bytes": int(self._read("free", str(FREE))),
        }

    def _read(self, name: str, default: str) -> str:
        path = self._scratch / name
        return path.read_text() if path.exists() else default

    def _deed_of(self, config: str) -> str:
        """The config itself, or what the file ``deeds`` has for a config with these knobs."""
        if "=" not in config:
            return config
        deeds = json.loads(self._read("deeds", "{}"))
        return next((deed for knobs, deed in deeds.items() if knobs in config), "launch:fine")

    def _do(self, deed: str) -> None:
        if deed.startswith("once-"):
            flag = self._scratch / "done-once"
            if flag.exists():
                return
            flag.touch()
            deed = deed.removeprefix("once-")
        if deed in CRASHES:
            os.kill(os.getpid(), CRASHES[deed])
        elif deed == "hang":
            while True:  # not even SIGTERM ends it
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                time.sleep(3600)
        elif deed == "exit":
            print("LLVM ERROR: bad relocation", file=sys.stderr, flush=True)
            os._exit(1)
        elif deed == "garbage":
            self._raw("Segmentation fau\n")
            time.sleep(3600)
        elif deed == "bug":
            raise ZeroDivisionError("in the worker")
        elif deed == "illegal":
            raise Refused(Status.ILLEGAL_ACCESS, "launch 1: cudaErrorIllegalAddress (700)", fatal=True)
        elif deed == "sicken":
            (self._scratch / "sick").write_text("999")
            raise Refused(Status.ILLEGAL_ACCESS, "launch 1: cudaErrorIllegalAddress (700)", fatal=True)
        elif deed == "wrong":
            raise Refused(Status.WRONG_RESULT, "5 of 64 elements beyond the tolerance", fatal=False)
        elif deed == "memory":
            raise Refused(Status.FAILED, "out of device memory: tried to allocate 1 TiB", fatal=True)
        elif deed == "print":
            print("a library says hello on stdout", flush=True)


def report(case: dict[str, Any]) -> dict[str, Any]:
    sizes = case["problem"]
    text = f"{sizes['m']},{sizes['k']},{sizes['n']},{sizes['r']}"
    return {"problem": text, "seed": 1, "launches": 9, "elements": 64, "max_ratio": 0.4}


_STATE = {"sm_mhz": 1980, "memory_mhz": 3201, "celsius": 40, "watts": 300.0, "reasons": []}
SAMPLES = {
    "protocol": "fake",
    "states": [_STATE] * 7,
    "launches": 20,
    "sets": 4,
    "warm_up_ms": 3.0,
    "settled": None,
    "gpu_ms": 10.0,
    "telemetry": "",
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("scratch", type=Path)
    args = parser.parse_args()
    out = private_stdout()

    def raw(text: str) -> None:
        out.write(text)
        out.flush()

    channel = Channel(out)
    serve(sys.stdin, channel, FakeSession(args.scratch, channel, raw))


if __name__ == "__main__":
    main()
