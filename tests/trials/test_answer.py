"""Futures of whoever judges candidates: what becomes of a value, a bug, Ctrl-C and a cancellation."""

from __future__ import annotations

import logging
from concurrent.futures import Future

import pytest

from tuner.trials.answer import answered, then


def test_an_answer_is_found_now() -> None:
    asked: list[int] = []
    future = answered(lambda: asked.append(1) or 7)
    assert asked == [1] and future.done() and future.result() == 7
    with pytest.raises(ZeroDivisionError):
        answered(lambda: 1 // 0).result()


def test_ctrl_c_goes_up_at_once() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answered(interrupted)


def test_what_follows_waits_for_its_future() -> None:
    first: Future[int] = Future()
    second = then(first, lambda done: done.result() + 1)
    assert not second.done()
    first.set_result(41)
    assert second.result(timeout=0) == 42


def test_a_bug_of_either_is_a_bug_of_what_follows() -> None:
    first: Future[int] = Future()
    second = then(first, lambda done: done.result() + 1)
    first.set_exception(ValueError("first"))
    with pytest.raises(ValueError, match="first"):
        second.result(timeout=0)
    with pytest.raises(ZeroDivisionError):
        then(answered(lambda: 0), lambda done: 1 // done.result()).result(timeout=0)


def test_who_gives_up_on_what_follows_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """Else the worker that completes the first would meet a future that takes no result."""
    first: Future[int] = Future()
    second = then(first, lambda done: done.result())
    assert not second.cancel()
    with caplog.at_level(logging.ERROR):
        first.set_result(5)
    assert second.result(timeout=0) == 5 and not caplog.records
