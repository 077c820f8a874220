"""TLS settings of a node: `Tls`, its checks, and the `ssl_...` options of URLs and clients."""

from __future__ import annotations

from types import NoneType
from typing import TYPE_CHECKING, Any, ForwardRef, Literal, TypeAlias, cast

from quorlock._core.record import Record
from quorlock._nodes.redact import refuse, shown, type_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from ssl import SSLContext

    LazySSLContext: TypeAlias = SSLContext
else:
    # Loads ssl when `typing.get_type_hints` reads it: few programs need either.
    LazySSLContext = ForwardRef("__import__('ssl').SSLContext")

Verify: TypeAlias = Literal["required", "optional", "none"]

# TLS 1.0 and 1.1 are not offered: broken, and switched off in OpenSSL's own defaults.
# The numbers are those of ssl.TLSVersion, which redis-py takes in its URLs.
_MIN_VERSIONS: Mapping[object, str] = {
    **dict.fromkeys((771, "771", "1.2", "TLSv1.2", "TLSv1_2"), "TLSv1.2"),
    **dict.fromkeys((772, "772", "1.3", "TLSv1.3", "TLSv1_3"), "TLSv1.3"),
}


class Tls(Record):
    """TLS settings of the connection to a node; the safe choice by default. Data only.

    Attributes:
        verify: whether the node must show a certificate that a known authority signed.
            "optional" is the same as "required" on a client's side; "none" checks nothing,
            the host name neither.
        check_hostname: whether the certificate must be for the node's host.
        ca_certs: path of a PEM file of authorities; in place of the system's.
        ca_path: path of a folder of authorities, hashed as OpenSSL wants it.
        ca_data: authorities as PEM text or DER bytes.
        certfile: path of our own certificate, where the node asks for one.
        keyfile: path of its key, where it is not in `certfile`.
        keyfile_password: what unlocks the key.
        min_version: "TLSv1.2" (the default) or "TLSv1.3".
        context: a ready `ssl.SSLContext`, in place of all the others.

    Raises:
        ConfigError: a value that cannot work.
    """

    verify: Verify
    check_hostname: bool
    ca_certs: str | None
    ca_path: str | None
    ca_data: str | bytes | None
    certfile: str | None
    keyfile: str | None
    keyfile_password: str | None
    min_version: str | None
    context: LazySSLContext | None

    _SECRET = ("keyfile_password", "ca_data")  # the latter is no secret, but long

    def __init__(
        self,
        *,
        verify: Verify = "required",
        check_hostname: bool = True,
        ca_certs: str | None = None,
        ca_path: str | None = None,
        ca_data: str | bytes | None = None,
        certfile: str | None = None,
        keyfile: str | None = None,
        keyfile_password: str | None = None,
        min_version: str | None = None,
        context: LazySSLContext | None = None,
    ) -> None:
        self._fill(locals())
        _check_tls(self)
        if verify == "none":
            vars(self)["check_hostname"] = False
        if min_version is not None:
            vars(self)["min_version"] = _MIN_VERSIONS[min_version]


def tls_in_short(tls: Tls) -> str:
    if tls.context is not None:
        return "context"
    loose = tls.verify != "none" and not tls.check_hostname
    return f"{tls.verify}, any host name" if loose else tls.verify


_TLS_TEXTS = ("ca_certs", "ca_path", "certfile", "keyfile", "keyfile_password", "min_version")


def _check_tls(tls: Tls) -> None:
    if tls.verify not in ("required", "optional", "none"):
        refuse("verify is 'required', 'optional' or 'none'", "tls.verify", shown(tls.verify))
    if not isinstance(cast("object", tls.check_hostname), bool):
        fix = "check_hostname is True or False"
        refuse(fix, "tls.check_hostname", shown(tls.check_hostname))
    for name in _TLS_TEXTS:
        value = getattr(tls, name)
        if not isinstance(value, (str, NoneType)):
            refuse(f"{name} must be a str", f"tls.{name}", type_of(value))
    if not isinstance(cast("object", tls.ca_data), (str, bytes, type(None))):
        refuse("ca_data is PEM text or DER bytes", "tls.ca_data", type_of(tls.ca_data))
    _check_tls_together(tls)


def _check_tls_together(tls: Tls) -> None:
    if tls.min_version is not None and tls.min_version not in _MIN_VERSIONS:
        refuse("the lowest version is 'TLSv1.2' or 'TLSv1.3'", "tls.min_version", tls.min_version)
    if tls.keyfile is not None and tls.certfile is None:
        refuse("a key needs its certificate: give certfile too", "tls.keyfile", tls.keyfile)
    if tls.context is None:
        return
    if not _is_context(tls.context):
        refuse("context is an ssl.SSLContext", "tls.context", shown(tls.context))
    if (tls.verify, tls.check_hostname) != ("required", True) or any(
        getattr(tls, name) is not None for name in (*_TLS_TEXTS, "ca_data")
    ):
        refuse("a context has its own settings; give it alone", "tls.context", "<SSLContext>")


def _is_context(thing: object) -> bool:
    # By shape: importing ssl costs about as much as all of quorlock.
    return all(hasattr(thing, name) for name in ("wrap_bio", "wrap_socket", "verify_mode"))


def as_tls(tls: object) -> Tls | None:
    if tls is None or tls is False:
        return None
    if isinstance(tls, Tls):
        return tls
    if tls is True:
        return Tls()
    if not _is_context(tls):
        refuse("tls is True, a Tls(...) or an ssl.SSLContext", "tls", shown(tls))
    return Tls(context=cast("SSLContext", tls))


# ssl.CERT_NONE, CERT_OPTIONAL and CERT_REQUIRED are 0, 1 and 2; None is redis-py's "none".
_VERIFY: Mapping[object, str] = {
    **dict.fromkeys((0, "none", None), "none"),
    **dict.fromkeys((1, "optional"), "optional"),
    **dict.fromkeys((2, "required"), "required"),
}
_FLAGS: Mapping[str, bool] = {
    **dict.fromkeys(("1", "T", "TRUE", "Y", "YES", "ON"), True),
    **dict.fromkeys(("0", "F", "FALSE", "N", "NO", "OFF"), False),
}


def _verify(value: object) -> str:
    if not isinstance(value, (int, str, NoneType)) or isinstance(value, bool):
        value = "***"
    if value not in _VERIFY:
        refuse("ssl_cert_reqs must be required, optional or none")
    return _VERIFY[value]


def read_flag(value: object, name: str = "ssl_check_hostname") -> bool:
    text = str(value).upper() if isinstance(value, (bool, str)) else ""
    if text not in _FLAGS:
        refuse(f"{name} must be true or false")
    return _FLAGS[text]


def _min_version(value: object) -> str:
    if not isinstance(value, (int, str)) or value not in _MIN_VERSIONS:
        refuse("ssl_min_version must be TLSv1.2 or TLSv1.3 (771 or 772)")
    return _MIN_VERSIONS[value]


def as_given(value: object) -> object:
    as_path: Any = getattr(value, "__fspath__", None)  # redis-py takes a pathlib.Path
    return as_path() if as_path else value


TLS_OPTIONS: Mapping[str, tuple[str, Callable[[object], object]]] = {
    "ssl_cert_reqs": ("verify", _verify),
    "ssl_check_hostname": ("check_hostname", read_flag),
    "ssl_ca_certs": ("ca_certs", as_given),
    "ssl_ca_path": ("ca_path", as_given),
    "ssl_ca_data": ("ca_data", as_given),
    "ssl_certfile": ("certfile", as_given),
    "ssl_keyfile": ("keyfile", as_given),
    "ssl_password": ("keyfile_password", as_given),
    "ssl_min_version": ("min_version", _min_version),
}


def tls_from(options: Mapping[str, object]) -> Tls:
    given: dict[str, Any] = {}
    for name, (argument, read) in TLS_OPTIONS.items():
        # For ssl_cert_reqs alone None says something: "none". Elsewhere it is "not given".
        if name in options and (options[name] is not None or name == "ssl_cert_reqs"):
            given[argument] = read(options[name])
    return Tls(**given)
