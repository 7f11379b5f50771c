"""What whoever judges candidates answers with: futures, whoever completes them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


def answered(call: Callable[[], Answer]) -> Future[Answer]:
    """What ``call`` gives or raises, found now and by this thread: of a device that does one thing at a time.

    What ends the process (Ctrl-C) goes up at once: nobody may ever look into the future.
    """
    future: Future[Answer] = Future()
    try:
        future.set_result(call())
    except Exception as error:
        future.set_exception(error)
    return future


def then(future: Future[Asked], answer: Callable[[Future[Asked]], Answer]) -> Future[Answer]:
    """What ``answer`` makes of ``future`` when it is done, by the thread that completes it. It cannot be cancelled."""
    after: Future[Answer] = Future()
    after.set_running_or_notify_cancel()

    def complete(done: Future[Asked]) -> None:
        try:
            after.set_result(answer(done))
        except BaseException as error:
            after.set_exception(error)

    future.add_done_callback(complete)
    return after
