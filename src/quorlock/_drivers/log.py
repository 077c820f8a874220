"""Reports for the logger `quorlock`: failures that no caller can receive as an exception."""

from __future__ import annotations

import contextlib


def log_trouble(text: str, error: BaseException) -> None:
    """Log an error with its traceback. Raise nothing, even if a log handler fails."""
    with contextlib.suppress(Exception):
        import logging  # here, since failures are rare; fails without a free descriptor

        logging.getLogger("quorlock").error(text, exc_info=error)
