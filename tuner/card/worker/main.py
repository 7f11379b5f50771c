"""The process that owns one card: ``python -m tuner.card.worker.main --card N``. Loads, checks
and times; never compiles.

One JSON object per line: requests on stdin, answers on a descriptor of its own (what was stdout; whatever else
prints goes to stderr), one answer per request, in order. It may be killed at any time. It imports neither the DSL
nor Optuna: torch, llvmlite and ctypes are enough.

| request ``op`` | fields | answer |
|---|---|---|
| ``health`` | | ``health``: uuid, name, sm_count, driver, bytes in all and free; the self test passed |
| ``check`` | ``candidate``, ``cases``, ``repeats``, ``seed`` | ``report``: what was checked, worst error |
| ``time`` | ``candidate``, ``case``, ``fidelity`` | ``samples`` of ``bench.time_launches`` |
| ``finals`` | ``entries`` of ``candidate``, ``case``; ``options`` | ``samples`` per entry, of ``bench.interleave`` |
| ``unload`` | | drops loaded objects and operands; ``free_bytes`` |
| ``shutdown`` | | the process ends |

``candidate`` is ``candidate.Loadable.record()``, ``case`` is ``candidate.Case.record()``. ``fidelity``, ``samples`` and
``options`` are ``dataclasses.asdict`` of the dataclasses in ``bench``: the worker calls

    bench.time_launches(launch, sets, bench.Fidelity(**fidelity), telemetry) -> bench.Samples
    bench.interleave([launch, ...], sets, bench.FinalsOptions(**options), telemetry) -> list[bench.Samples]

``launch(i)`` enqueues one launch with operand set ``i`` (0 <= i < ``sets``) on torch's current stream, allocates
nothing and may be captured in a CUDA graph. ``telemetry`` is ``telemetry.Telemetry(uuid)``, made once per process.
Sets are so many that their bytes exceed three times the L2 (at least 2).

Every answer has ``ok``. With ``ok`` false: ``status`` (a word of ``outcome.Status``), ``reason`` (one line) and
``fatal``: the context is lost (a sticky CUDA error, a launch that does not end), so that the parent must replace the
process. While it works on a request it writes lines with a ``phase`` (``load``, ``operands``, ``launch``,
``compare``, ``time``), so that the parent can say where a worker hung or died.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from typing import IO, Any, Protocol

from tuner.card.worker.protocol import BUG, Refused

LAUNCH_LIMIT_S = 10.0  # launches take at most milliseconds


class Channel:
    """Lines of JSON out; ``answer`` ends a request, ``phase`` says what it is at."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out

    def phase(self, name: str) -> None:
        self._write({"phase": name})

    def answer(self, record: dict[str, Any]) -> None:
        self._write(record)

    def _write(self, record: dict[str, Any]) -> None:
        self._out.write(json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n")
        self._out.flush()


class Session(Protocol):
    """What the requests do: ``session.CardSession``, or what takes its place in tests."""

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """The fields of the answer. Raises ``Refused``."""
        ...

    def forget_old(self) -> None:
        """Between requests."""
        ...


def serve(requests: IO[str], channel: Channel, session: Session) -> None:
    """Answers until ``shutdown``, the end of ``requests``, or an answer after which the process is of no use."""
    for line in requests:
        request = json.loads(line)
        if request["op"] == "shutdown":
            return
        answer = _answer(session, request)
        channel.answer(answer)
        if answer.get("fatal"):
            return
        session.forget_old()


def _answer(session: Session, request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"ok": True, **session.handle(request)}
    except Refused as error:
        return {"ok": False, "status": error.status, "reason": str(error), "fatal": error.fatal}
    except Exception:
        return {"ok": False, "status": BUG, "reason": traceback.format_exc(), "fatal": True}


def private_stdout() -> IO[str]:
    """What was stdout, for answers alone; everybody else's stdout is stderr from now on."""
    own = os.fdopen(os.dup(1), "w", encoding="utf-8")
    sys.stdout.flush()
    os.dup2(2, 1)
    return own


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--card", type=int, required=True, metavar="N", help="as in cuda:N")
    parser.add_argument(
        "--launch-limit", type=float, default=LAUNCH_LIMIT_S, metavar="S", help="seconds a launch may take"
    )
    parser.add_argument("--parent", type=int, default=0, metavar="PID", help="end when this process does")
    args = parser.parse_args(arguments)
    channel = Channel(private_stdout())
    if args.parent:
        from tuner.processes import die_with

        die_with(args.parent)
    try:
        from tuner.card.worker.session import CardSession

        session = CardSession(args.card, channel.phase, args.launch_limit)
    except Exception:
        # No verdict on any candidate: the parent learns it as the answer to its first request.
        channel.answer({"ok": False, "status": BUG, "reason": traceback.format_exc(), "fatal": True})
        os._exit(1)
    serve(sys.stdin, channel, session)
    os._exit(0)  # not through the destructors of a context that may be lost


if __name__ == "__main__":
    main()
