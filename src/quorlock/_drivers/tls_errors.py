"""Errors of TLS, in words. The module `ssl` is imported only if TLS is used."""

from __future__ import annotations

_ENDS = ("SSLEOFError", "SSLZeroReturnError")


def is_end(error: Exception) -> bool:
    """Return whether the server has closed the connection, with or without TLS."""
    return isinstance(error, ConnectionResetError) or type(error).__name__ in _ENDS


def tls_reason(error: Exception | None) -> str:
    """Return the reason of an error of TLS, without OpenSSL's source positions; "" of any other."""
    name = type(error).__name__
    if name in _ENDS:
        return "closed by the server"
    if not name.startswith("SSL"):
        return ""
    reason = getattr(error, "verify_message", "") or getattr(error, "reason", "") or name
    return str(reason).replace("_", " ").lower()
