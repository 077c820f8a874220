"""What the runs on real servers share."""

from __future__ import annotations

import os
import random

import pytest


@pytest.fixture
def seed() -> int:
    """Of this run; printed. QUORLOCK_SEED takes it again: the same choices, not the same timing."""
    chosen = int(os.environ.get("QUORLOCK_SEED") or random.SystemRandom().randrange(1 << 31))
    print(f"QUORLOCK_SEED={chosen}")
    return chosen
