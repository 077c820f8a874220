"""Start the programs of examples/ as their users do, and end them."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

EXAMPLES = Path(__file__).parents[3] / "examples"
PATIENCE = 60.0  # seconds, for a program on a busy machine


def environment(urls: Sequence[str], **more: str) -> dict[str, str]:
    """The environment of a program that locks on these nodes."""
    return {**os.environ, "QUORLOCK_NODES": ",".join(urls), "PYTHONUNBUFFERED": "1", **more}


@contextmanager
def started(*words: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run Python with these words in examples/; kill it at the end of the block."""
    with subprocess.Popen(
        [sys.executable, *words], **{"cwd": EXAMPLES, "text": True, **options}
    ) as process:
        try:
            yield process
        finally:
            process.kill()
