"""Patience with nodes, for the tests that are not about slow ones."""

from __future__ import annotations

import pytest

from quorlock._api.redlock import RedlockBase


@pytest.fixture(autouse=True)
def patient_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give nodes a quarter of a second to reply, where a test says nothing about `node_timeout`.

    On a machine that runs other tests as well, a healthy node may take longer than the 50 ms of the
    library. A test about the default overrides this fixture.
    """
    defaults = RedlockBase.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "node_timeout", 0.25)
