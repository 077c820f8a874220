"""Work in threads, and a main thread that may be interrupted while it waits for it."""

from __future__ import annotations

import random
import signal
import threading
from contextlib import suppress

import pytest

from quorlock._cli.background import BackgroundCall, run_all


def test_each_gives_what_comes_of_all_in_their_order() -> None:
    met = threading.Barrier(4)

    def call(number: int) -> int:
        met.wait(10)  # all at once
        return number * number

    assert run_all(call, range(4)) == [0, 1, 4, 9]


def test_what_one_raises_comes_out() -> None:
    def call(number: int) -> int:
        return 1 // number

    with pytest.raises(ZeroDivisionError):
        run_all(call, [1, 0, 2])


def test_interrupted_anywhere_in_the_waiting_it_can_be_waited_for_again() -> None:
    """One of some hundred interrupts leaves both threads stuck for good with concurrent.futures."""

    def alarmed(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, alarmed)
    try:
        for _ in range(300):
            end = threading.Event()
            work = BackgroundCall(end.wait)
            with suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, random.uniform(50e-6, 2e-3))
                work.wait()
            end.set()
            assert work.result()
    finally:
        signal.signal(signal.SIGALRM, before)
