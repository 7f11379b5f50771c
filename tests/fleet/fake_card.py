"""``fake_card_worker``, whose times follow from the config; each request takes as long as it is told to."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from tests.card.fake_card_worker import SAMPLES, FakeSession
from tests.fakes import fake_us
from tuner.card.worker.main import Channel, private_stdout, serve


class TimedSession(FakeSession):
    def __init__(self, scratch: Path, channel: Channel, seconds: float) -> None:
        super().__init__(scratch, channel, lambda text: None)
        self._seconds, self._folder = seconds, scratch

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = super().handle(request)
        if request["op"] == "health":
            return answer
        time.sleep(self._seconds)
        entries = [entry["candidate"] for entry in request.get("entries", [request])]
        with (self._folder / "configs").open("a") as log:
            log.write("".join(f"{request['op']} {entry['config']}\n" for entry in entries))
        for entry in entries:
            assert (
                Path(entry["object_path"]).read_bytes().startswith(f"object of {entry['config']} ".encode())
            )
        if request["op"] == "time":
            return {"samples": _samples(entries[0]["config"], 7)}
        if request["op"] == "finals":
            rounds = request["options"]["rounds"]
            return {"samples": [_samples(entry["config"], rounds) for entry in entries]}
        return answer


def _samples(config: str, count: int) -> dict[str, Any]:
    states = [SAMPLES["states"][0]] * count
    return {**SAMPLES, "us": [fake_us(config)] * count, "states": states}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("scratch", type=Path)
    parser.add_argument("seconds", type=float)
    args = parser.parse_args()
    channel = Channel(private_stdout())
    serve(sys.stdin, channel, TimedSession(args.scratch, channel, args.seconds))


if __name__ == "__main__":
    main()
