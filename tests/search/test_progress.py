"""What a user sees: text worked out by hand, on a terminal and in a file."""

from __future__ import annotations

import io

from tuner.search.progress import Progress, State, duration


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def lines(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


def test_line_tells_where_a_tune_stands() -> None:
    state = State(done=50, total=200, known=10, failed=3, compiling=4, best_us=23.264, kind="modelled")
    # 40 of its own trials in 20 s: the other 150 take 75 s.
    assert state.line(20.0) == (
        "50/200 trials, 10 from the journal, 3 failed, 4 compiling, best 23.26 us modelled, ETA 1 min 15 s"
    )
    assert State(total=200, compiling=2).line(3.4) == "0/200 trials, 2 compiling, 3 s so far"
    assert State(done=7, total=7).line(61.0) == "7/7 trials, 0 compiling, 1 min 01 s in all"
    assert State(done=9, total=200, known=9).remaining_s(5.0) is None, "the journal's speed says nothing"


def test_duration() -> None:
    assert [duration(s) for s in (0, 59.4, 59.6, 185, 3599, 7620)] == [
        "0 s",
        "59 s",
        "1 min 00 s",
        "3 min 05 s",
        "59 min 59 s",
        "2 h 07 min",
    ]


def test_plain_lines_come_seconds_apart() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress("4352,3840,3072,128", stream=stream, terminal=False, clock=clock)
    for step in range(100):
        clock.now = 100.0 + step / 4
        progress.update(State(done=step, total=100))
    progress.finish(State(done=100, total=100))
    shown = lines(stream)
    assert len(shown) == 3  # after 10 and 20 of 25 seconds, and at the end
    assert shown[0].startswith("4352,3840,3072,128: 40/100 trials") and "\r" not in stream.getvalue()


def test_terminal_rewrites_one_line() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream=stream, terminal=True, clock=clock)
    for step in range(10):
        clock.now = 100.0 + step
        progress.update(State(done=step, total=10))
    progress.say("a note")
    progress.finish(State(done=10, total=10))
    text = stream.getvalue()
    assert text.count("\n") == 2 and text.endswith("\n")
    screen = [line.split("\r\x1b[K")[-1] for line in text.split("\n")]
    assert screen[0] == "a note" and screen[1].startswith("10/10 trials") and screen[2] == ""


def test_terminal_line_fits_its_width(monkeypatch: object) -> None:
    stream = io.StringIO()
    Progress("x" * 500, stream=stream, terminal=True).finish(State())
    assert len(stream.getvalue().strip()) < 500
