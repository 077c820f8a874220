"""Addresses as URLs: `redis://`, `rediss://`, `unix://`, `memory://`, and their options."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from quorlock._nodes.redact import DB_PATH_PATTERN, URL_PATTERN, is_clean, parse_port, refuse
from quorlock._nodes.tls import TLS_OPTIONS, read_flag, tls_from

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_URL_FORM = "redis://[[user]:password@]host[:port][/db], rediss://... or unix:///path?db=0"

_URL_FAULTS: tuple[tuple[Callable[[str], bool], str], ...] = (
    (
        lambda url: not is_clean(url),
        "the URL contains a blank or a control character; write a blank as %20",
    ),
    (lambda url: "://" not in url, f"begin with the scheme: {_URL_FORM}"),
    (
        # An '@' ends the user info, where there is one; a '#' has no meaning at all.
        lambda url: not re.fullmatch("[^@/?#]*@?[^@#]*", url.partition("://")[2]),
        "percent-encode '@ / ? #' in user and password: urllib.parse.quote(password, safe='')",
    ),
    (
        lambda url: re.fullmatch(URL_PATTERN, url) is None,
        f"the form is {_URL_FORM}; an IPv6 host stands in brackets: redis://[::1]:6379",
    ),
)


def read_url(url: object) -> dict[str, Any]:
    """Return the arguments of `Node` that the URL gives."""
    if not isinstance(url, str):
        refuse("a URL is a str")
    for at_fault, fix in _URL_FAULTS:
        if at_fault(url):
            refuse(fix)
    match = cast("re.Match[str]", re.fullmatch(URL_PATTERN, url))
    scheme = match["scheme"].lower()
    if scheme not in _SCHEMES:
        refuse(f"the scheme must be {', '.join(f'{name}://' for name in _SCHEMES)}")
    options = _read_options(match["query"] or "")
    return _SCHEMES[scheme](match, options) | _read_login(match["userinfo"], options)


def _read_tcp(match: re.Match[str], options: dict[str, str]) -> dict[str, Any]:
    for name in options:
        if name.startswith("ssl_"):
            refuse(f"{name} would be without effect: write rediss:// for an encrypted connection")
    host = _decoded(match["host"].strip("[]"), "the host")
    if not host:
        refuse("name the host, e.g. redis://localhost:6379")
    facts: dict[str, Any] = {"host": host.lower(), "db": _read_db(match, options)}
    facts |= _read_durable(options)
    if match["port"]:
        facts["port"] = parse_port(match["port"])
    return facts


def _read_tls(match: re.Match[str], options: dict[str, str]) -> dict[str, Any]:
    tls = {name: value for name, value in options.items() if name.startswith("ssl_")}
    plain = {name: value for name, value in options.items() if name not in tls}
    settings = tls_from(tls)
    if settings.verify == "none" and read_flag(tls.get("ssl_check_hostname", False)):
        refuse("with ssl_cert_reqs=none no host name is checked: leave out ssl_check_hostname")
    return _read_tcp(match, plain) | {"tls": settings}


def _read_unix(match: re.Match[str], options: dict[str, str]) -> dict[str, Any]:
    if match["host"] or match["port"] is not None:
        refuse("a unix socket's path begins with a third slash: unix:///run/redis.sock")
    if not (match["path"] or "").strip("/"):
        refuse("name the socket's file: unix:///run/redis.sock")
    for name in options:
        if name.startswith("ssl_"):
            refuse(f"{name} is without effect: a unix socket is not encrypted")
    facts = {"path": _decoded(match["path"], "the path"), "db": _db(options.get("db", "0"))}
    return facts | _read_durable(options)


def _read_memory(match: re.Match[str], options: dict[str, str]) -> dict[str, Any]:
    beside = (match["userinfo"], match["port"], (match["path"] or "").strip("/") or None)
    if options or beside != (None, None, None):
        refuse("a memory node has a name and nothing else: memory://a")
    return {"memory": match["host"]}


_SCHEMES: Mapping[str, Callable[[re.Match[str], dict[str, str]], dict[str, Any]]] = {
    "redis": _read_tcp,
    "rediss": _read_tls,
    "unix": _read_unix,
    "valkey": _read_tcp,
    "valkeys": _read_tls,
    "memory": _read_memory,
}


def _read_db(match: re.Match[str], options: dict[str, str]) -> int:
    path = re.fullmatch(DB_PATH_PATTERN, _decoded(match["path"] or "", "the db"))
    if path is None:
        refuse("what follows the host is the db's number: redis://host:6379/0")
    if path[1] and "db" in options and int(path[1]) != _db(options["db"]):
        refuse("the db is given twice, after the host and as an option; keep one")
    return _db(path[1] or options.get("db", "0"))


def _read_durable(options: dict[str, str]) -> dict[str, bool]:
    return {"durable": read_flag(options["durable"], "durable")} if "durable" in options else {}


def _db(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text):
        refuse("the db must be a whole number, 0 or more")
    return int(text)


def _read_login(userinfo: str | None, options: dict[str, str]) -> dict[str, str]:
    if userinfo is None:
        return {name: options[name] for name in ("username", "password") if name in options}
    if "username" in options or "password" in options:
        refuse("user and password are given twice, before the '@' and as options; keep one")
    username, colon, password = userinfo.partition(":")
    if username and not colon:
        # Half of those who write this mean a password, which would then be shown as a name.
        refuse("write :password@ for a password alone, user:@ for a user without one")
    login = {"username": username, "password": password}
    return {name: _decoded(value, f"the {name}") for name, value in login.items() if value}


def _decoded(text: str, what: str) -> str:
    if "%" not in text:
        return text
    from urllib.parse import unquote  # here and below: most URLs have nothing to decode

    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        pass
    return refuse(f"{what} is not UTF-8 after percent-decoding")


def _read_options(query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in _pairs(query):
        if name not in _OPTIONS:
            refuse(_about_option(name))
        if name in options:
            refuse(f"the option {name} is given twice")
        if not value:
            refuse(f"the option {name} is empty; give it a value or leave it out")
        options[name] = value
    return options


def _pairs(query: str) -> list[tuple[str, str]]:
    if not query:
        return []
    from urllib.parse import parse_qsl

    try:
        return parse_qsl(query, keep_blank_values=True, errors="strict")
    except ValueError:
        pass
    return refuse("the options are not UTF-8 after percent-decoding")


_NOT_NEEDED = "is not needed here, leave it out"
NOT_BY_URL = "cannot be given here: make an ssl.SSLContext with it and give Node(..., tls=context)"

FOREIGN_OPTIONS: Mapping[str, str] = {
    "socket_timeout": "is node_timeout= of Redlock(...); leave it out here",
    "socket_connect_timeout": "is connect_timeout= of Redlock(...); leave it out here",
    "ssl": "is the scheme's business: write rediss://",
    **dict.fromkeys(("host", "port", "path", "unix_socket_path"), "goes before the '?'"),
    **dict.fromkeys(
        (
            *("ssl_ciphers", "ssl_include_verify_flags", "ssl_exclude_verify_flags"),
            *("ssl_validate_ocsp", "ssl_validate_ocsp_stapled"),
            *("ssl_ocsp_context", "ssl_ocsp_expected_cert"),
        ),
        NOT_BY_URL,
    ),
    **dict.fromkeys(
        (
            *("client_name", "decode_responses", "encoding", "encoding_errors", "lib_name"),
            *("health_check_interval", "legacy_responses", "lib_version", "max_connections"),
            *("protocol", "retry", "retry_on_error", "retry_on_timeout", "socket_keepalive"),
            *("socket_keepalive_options", "socket_read_size", "timeout"),
        ),
        _NOT_NEEDED,
    ),
}


def _about_option(name: str) -> str:
    if not re.fullmatch("[a-z_]{1,40}", name, re.IGNORECASE):
        return "an option's name is not one: the form is ?name=value&name=value"
    if name in FOREIGN_OPTIONS:
        return f"the option {name} {FOREIGN_OPTIONS[name]}"
    from difflib import get_close_matches  # here: for the slips of a few

    near = "".join(get_close_matches(name.lower(), (*_OPTIONS, *FOREIGN_OPTIONS), n=1))
    hint = f"did you mean {near}?" if near else f"known are {', '.join(_OPTIONS)}"
    more = f" It {FOREIGN_OPTIONS[near]}" if near in FOREIGN_OPTIONS else ""
    return f"the option {name} is unknown; {hint}{more}"


_OPTIONS = ("db", "username", "password", "durable", *TLS_OPTIONS)
