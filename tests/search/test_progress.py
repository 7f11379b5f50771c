"""What a user sees: text worked out by hand, on a terminal and in a file."""

from __future__ import annotations

import io
import re

import pytest

from tuner.search.progress import Progress, State, duration, quiet


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


def test_a_stage_is_told_at_once() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress("64,64,64,0", stream=stream, terminal=False, clock=clock)
    progress.stage("getting ready")
    assert lines(stream) == ["64,64,64,0: getting ready"]
    progress.update(State(total=3))
    assert len(lines(stream)) == 1, "its states come seconds apart all the same"


def test_quiet_takes_states_and_leaves_what_is_said() -> None:
    stream = io.StringIO()
    progress = Progress(stream=stream, terminal=False)
    with quiet():
        progress.stage("candidates")
        progress.finish(State(done=1, total=1))
        progress.say("a warning")
    assert lines(stream) == ["a warning"]
    progress.finish(State(done=1, total=1))
    assert len(lines(stream)) == 2


class Terminal(io.StringIO):
    encoding = "utf-8"


def screen(text: str) -> list[str]:
    """What a terminal shows: carriage return, line feed and cursor up, as far as a bar uses them."""
    rows, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[A|\r|\n|[^\r\n\x1b]+", text):
        if part == "\x1b[A":
            row -= 1
        elif part == "\r":
            column = 0
        elif part == "\n":
            row, column = row + 1, 0
            rows += [""] * (row + 1 - len(rows))
        else:
            rows[row] = rows[row].ljust(column)[:column] + part + rows[row][column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in rows]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "121")
    monkeypatch.setenv("LINES", "41")
    return Terminal()


def test_terminal_shows_stage_best_and_what_each_worker_compiles(terminal: Terminal) -> None:
    clock = Clock()
    progress = Progress("64,64,64,0", stream=terminal, terminal=True, clock=clock)
    progress.stage("candidates")
    assert screen(terminal.getvalue())[0].startswith("64,64,64,0: candidates")
    clock.now += 4
    workers = tuple(f"mma_tiler_k={number}" for number in range(10))
    progress.update(State(done=2, total=10, best_us=3.25, kind="simulated", compiling=10, workers=workers))
    shown = screen(terminal.getvalue())
    assert shown[0].endswith("| 2/10 trials, 10 compiling, best 3.25 us simulated, ETA 16 s")
    assert shown[1:9] == [f"  compiling mma_tiler_k={number}" for number in range(8)]
    assert shown[9] == "  and 2 more"


def test_terminal_keeps_notes_and_the_last_state(terminal: Terminal) -> None:
    clock = Clock()
    progress = Progress(stream=terminal, terminal=True, clock=clock)
    for step in range(10):
        clock.now = 100.0 + step
        progress.update(State(done=step, total=10, workers=("use_pdl=true",)))
    progress.say("a note")
    progress.finish(State(done=10, total=10))
    shown = [line for line in screen(terminal.getvalue()) if line]
    assert shown[0] == "a note" and len(shown) == 2
    assert shown[1].endswith("| 10/10 trials, 0 compiling, 9 s in all")
