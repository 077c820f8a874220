"""Everything that a lock needs works on the servers that are here (QUORLOCK_SERVERS: on more)."""

from __future__ import annotations

import os
import re

import pytest

from quorlock.testing.servers import Servers, find_binary
from tools.servers import ALONE, FEATURES, Lacking

NAMED = [word for word in re.split(r"[\s,]+", os.environ.get("QUORLOCK_SERVERS", "")) if word]


@pytest.fixture(params=NAMED or ["ours"], ids=lambda word: word.partition("=")[0])
def binary(request: pytest.FixtureRequest) -> str:
    return find_binary() if request.param == "ours" else request.param.rpartition("=")[2]


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature(name: str, binary: str) -> None:
    try:
        with Servers(3, binary=binary) as nodes:
            FEATURES[name](nodes)
    except Lacking as lacking:
        pytest.skip(str(lacking))


@pytest.mark.parametrize("name", ALONE)
def test_a_feature_of_other_servers(name: str, binary: str) -> None:
    try:
        ALONE[name](binary)
    except Lacking as lacking:
        pytest.skip(str(lacking))
