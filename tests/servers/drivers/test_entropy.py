"""Random bytes come from the kernel; where possible, the interpreter lock is kept."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from quorlock._drivers.entropy import TOKEN_BYTES, _source

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.skipif(sys.platform != "linux", reason="os.getrandom is of Linux alone")
def test_on_linux_the_interpreter_lock_is_kept() -> None:
    """`os.urandom` releases it: with many threads, each acquire waited for all others."""
    assert _source() is os.getrandom
    assert len({_source()(TOKEN_BYTES) for _ in range(100)}) == 100


def refuses(*_: object) -> bytes:
    raise BlockingIOError(11, "the kernel has just started")


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr(os, "getrandom", refuses, raising=False),
        lambda patch: patch.setattr(sys, "platform", "darwin"),
    ],
    ids=["refused", "another system"],
)
def test_elsewhere_it_is_urandom(
    change: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch)
    assert _source() is os.urandom
