"""The grammar of addresses, and what of them may be shown.

A secret stays in its field: an error shows only text that fits the grammar of an address.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn

from quorlock.errors import ConfigError

if TYPE_CHECKING:
    from ipaddress import IPv6Address

PORTS = range(1, 65536)

# Our own grammar and not urlsplit: it refuses where urlsplit guesses (a raw '/' in a password
# makes it take the rest for a path), and it raises nothing that quotes the URL. These are compiled
# at their first use, not at import.
URL_PATTERN = (
    r"(?:(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://|(?!.*://))"
    r"(?:(?P<userinfo>[^@/?#]*)@)?"
    r"(?P<host>\[[^\[\]@/?#]*:[^\[\]@/?#]*\]|[^\[\]@:/?#]*)"
    r"(?::(?P<port>[^@:/?#]*))?"
    r"(?P<path>/[^@?#]*)?"
    r"(?:\?(?P<query>[^@#]*))?"
)
_SCHEME = r"(?:rediss?|valkeys?|unix|memory|https?|tcp)://"
_PLAIN_HOST = r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]"
DB_PATH_PATTERN = r"(?:/([0-9]{0,9})/?)?"


def refuse(fix: str, argument: str = "url", value: object = "***") -> NoReturn:
    raise ConfigError(argument=argument, value=value, fix=fix)


def shown(value: object) -> object:
    """Return what an error may show: text by the grammar of addresses, the rest by its type."""
    if isinstance(value, str):
        return redacted(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return type_of(value)


def type_of(value: object) -> str:
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


def redacted(url: str) -> str:
    """Return `url` without user info and options; `***` for what is not like an address."""
    match = re.fullmatch(URL_PATTERN, url)
    if match is None:
        begin = re.match(_SCHEME, url)
        return f"{begin[0]}***" if begin else "***"
    scheme = f"{match['scheme']}://" if match["scheme"] else ""
    user = "" if match["userinfo"] is None else "***@"
    return f"{scheme}{user}{_shown_place(match)}"


def _shown_place(match: re.Match[str]) -> str:
    host, port, path = match["host"], match["port"], match["path"] or ""
    if not host and match["scheme"] == "unix" and port is None:
        return path
    # "redis://app:secret" (host forgotten) puts a password where the port should be.
    if not re.fullmatch(_PLAIN_HOST, host) or not (port is None or parse_port(port)):
        return "***"
    numbered = f"{host}:{port}" if port and match["scheme"] else host
    return numbered + (path if re.fullmatch(DB_PATH_PATTERN, path) else "/***")


def is_number(value: object, low: int, high: float) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def is_clean(text: str) -> bool:
    return text.isprintable() and not any(map(str.isspace, text))


def parse_ipv6(host: str) -> IPv6Address | None:
    if ":" not in host:
        return None
    from ipaddress import IPv6Address  # here: most hosts are names

    try:
        return IPv6Address(host)
    except ValueError:
        return None


def parse_port(text: str) -> int:
    """Return the port as a number; 0, which is none, for anything else."""
    return int(text) if re.fullmatch("[0-9]{1,5}", text) and int(text) in PORTS else 0
