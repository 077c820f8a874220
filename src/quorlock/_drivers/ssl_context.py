"""The SSLContext that a node's `Tls` describes. Drivers perform the handshakes.

`ssl` is imported inside functions, so that `import quorlock` stays light without TLS.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from quorlock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from ssl import SSLContext

    from quorlock._nodes.tls import Tls


def context(tls: Tls) -> SSLContext:
    """Return the context to connect with: certificate and host name checked, TLS 1.2 or newer.

    Trust the system's authorities if `tls` names none; else only those that it names.

    Raises:
        ConfigError: A file cannot be read or has the wrong content.
    """
    if tls.context is not None:
        return tls.context
    return _context(tls, tuple([_stamp(path) for path in _files(tls) if path is not None]))


def _files(tls: Tls) -> tuple[str | None, ...]:
    from ssl import get_default_verify_paths

    named = (tls.ca_certs, tls.ca_path, tls.certfile, tls.keyfile)
    system = get_default_verify_paths()
    return named if _names_authorities(tls) else (*named, system.cafile, system.capath)


def _stamp(path: str) -> object:
    """Return what changes when a file is replaced."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


# The system's authorities take a tenth of a second, in which an event loop would do nothing else.
# So nodes share a context, until a file has changed: certificates are renewed while programs run.
@lru_cache(maxsize=16)
def _context(tls: Tls, stamps: tuple[object, ...]) -> SSLContext:
    del stamps
    from ssl import PROTOCOL_TLS_CLIENT, SSLContext

    made = SSLContext(PROTOCOL_TLS_CLIENT)
    _set_checks(made, tls)
    _set_authorities(made, tls)
    _set_own_certificate(made, tls)
    return made


def _set_checks(made: SSLContext, tls: Tls) -> None:
    from ssl import TLSVersion, VerifyMode

    modes = {"required": "CERT_REQUIRED", "optional": "CERT_OPTIONAL", "none": "CERT_NONE"}
    # Order matters: `ssl` refuses to drop the certificate while the host name is checked.
    made.check_hostname = tls.check_hostname and tls.verify != "none"
    made.verify_mode = VerifyMode[modes[tls.verify]]
    wanted = TLSVersion.TLSv1_3 if tls.min_version == "TLSv1.3" else TLSVersion.TLSv1_2
    # The system's policy may already require more; it is never lowered.
    made.minimum_version = max(made.minimum_version, wanted)


def _names_authorities(tls: Tls) -> bool:
    return (tls.ca_certs, tls.ca_path, tls.ca_data) != (None, None, None)


def _set_authorities(made: SSLContext, tls: Tls) -> None:
    if not _names_authorities(tls) and tls.verify != "none":
        made.load_default_certs()
    if tls.ca_certs is not None:
        cafile = _readable("ca_certs", tls.ca_certs)
        fix = "this must be a PEM file of certificates"
        _load("ca_certs", cafile, fix, lambda: made.load_verify_locations(cafile=cafile))
    if tls.ca_path is not None:
        folder = _folder("ca_path", tls.ca_path)
        fix = "this must be a folder of certificates, hashed by `openssl rehash`"
        _load("ca_path", folder, fix, lambda: made.load_verify_locations(capath=folder))
    if tls.ca_data is not None:
        data, fix = tls.ca_data, "this must be certificates as PEM text or DER bytes"
        _load("ca_data", "...", fix, lambda: made.load_verify_locations(cadata=data))


def _set_own_certificate(made: SSLContext, tls: Tls) -> None:
    if tls.certfile is None:
        return
    certfile = _readable("certfile", tls.certfile)
    keyfile = None if tls.keyfile is None else _readable("keyfile", tls.keyfile)
    # With None, OpenSSL would ask for the password on the terminal, and wait.
    password = tls.keyfile_password or ""
    fix = f"not a PEM certificate with its key ({keyfile or 'in the same file'}), or locked"
    if tls.keyfile_password is not None:
        fix += ", or keyfile_password does not unlock it"
    _load("certfile", certfile, fix, lambda: made.load_cert_chain(certfile, keyfile, password))


def _load(name: str, value: str, fix: str, load: Callable[[], None]) -> None:
    try:
        load()
    # ssl.SSLError is an OSError; text that is not ASCII is a TypeError to cadata.
    except (OSError, TypeError, ValueError) as error:
        reason = getattr(error, "reason", None)
    else:
        return
    # `reason` of `ssl` is OpenSSL's text, never text from the file.
    raise ConfigError(f"tls.{name}", value, f"{fix} ({reason})" if reason else fix)


def _readable(name: str, path: str) -> str:
    try:
        with Path(path).open("rb"):
            return path
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a path"
    raise ConfigError(f"tls.{name}", path, f"this file cannot be read: {reason}")


def _folder(name: str, path: str) -> str:
    # OpenSSL accepts a missing folder silently, and then trusts no authority.
    if not Path(path).is_dir():
        raise ConfigError(f"tls.{name}", path, "this folder does not exist")
    return path
