"""Faults of the network before a node, by its proxy, each with its proof.

A proof goes through the proxy as a separate client and also reads the server directly, so it needs
no traffic.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from tests.harness.faults.fault import SiteFault, await_that, check, probe_key
from tests.harness.faults.proxy import Proxy
from tests.harness.faults.site import Site
from tests.harness.support.resp import Address, Talk, is_silent, what_happens

_QUIET = 0.05  # seconds without a byte that count as silence
_PROBE = ("1", "PX", "2000")  # what a proof sets through the proxy expires


class NetworkFault(SiteFault[Counter[str]]):
    """An order to the proxy. Kept is what the proxy had counted before."""

    def __init__(self, name: str, order: Callable[[Proxy], None]) -> None:
        super().__init__()
        self.name = name
        self._order = order

    def _before(self, site: Site) -> Counter[str]:
        return site.proxy.counts

    def _begin(self, site: Site, state: Counter[str]) -> None:
        self._order(site.proxy)

    def _end(self, site: Site, state: Counter[str]) -> None:
        site.proxy.transparent()


class Delay(NetworkFault):
    """Everything comes later, either way."""

    def __init__(self, seconds: float, jitter: float = 0.0, *, name: str = "delay") -> None:
        super().__init__(name, lambda proxy: proxy.delay(seconds, jitter))
        self._seconds = seconds

    def _proof(self, site: Site, state: Counter[str]) -> str:
        took = _round_trip(site, "PING")
        check(took >= 2 * self._seconds, f"PING took {took:.3f} s through {site.proxy!r}")
        return f"PING took {took:.3f} s, at least {2 * self._seconds} s were ordered"


class Throttle(NetworkFault):
    """A line that lets few bytes through a second."""

    def __init__(self, bytes_per_second: float) -> None:
        super().__init__("throttle", lambda proxy: proxy.throttle(bytes_per_second))
        self._rate = bytes_per_second

    def _proof(self, site: Site, state: Counter[str]) -> str:
        size = max(100, round(self._rate * _QUIET))
        took = _round_trip(site, "ECHO", "x" * size)
        # The pieces' pauses are counted, so the last bytes of each way may be for nothing.
        least = 2 * size / self._rate
        check(took >= least, f"{size} bytes there and back took {took:.3f} s")
        return f"{size} bytes there and back took {took:.3f} s, at {self._rate} bytes a second"


class DropReplies(NetworkFault):
    """Some replies are lost, each with its connection; the requests were served."""

    def __init__(self, replies: int = 1) -> None:
        super().__init__("drop-reply", lambda proxy: proxy.drop_replies(replies))

    def _proof(self, site: Site, state: Counter[str]) -> str:
        if not self._dropped(site, state):  # no traffic yet: then it is we who lose one
            answer = what_happens(site.proxy.path, seconds=_QUIET)
            # Traffic may have come first, and lost what was to be lost.
            lost = answer in (*ENDS, "TimeoutError") or self._dropped(site, state)
            check(lost, f"PING came to {answer}")
            await_that(lambda: self._dropped(site, state) > 0, "a reply is dropped")
        return f"{self._dropped(site, state)} replies dropped"

    def _dropped(self, site: Site, state: Counter[str]) -> int:
        return site.proxy.counts["replies dropped"] - state["replies dropped"]


class HalfClose(NetworkFault):
    """Callers see the end of their connection, while what they send still reaches the server."""

    def __init__(self) -> None:
        super().__init__("half-close", Proxy.half_close)

    def _proof(self, site: Site, state: Counter[str]) -> str:
        first, second = probe_key(), probe_key()
        with Talk(site.proxy.path) as talk:
            talk.send("SET", first, *_PROBE)
            _sees_the_end(talk)
            talk.send("SET", second, *_PROBE)
            await_that(lambda: _has(site, first, second), "both SETs have reached the server")
        return "a caller saw the end of its connection; its SETs before and after it were served"


class Stall(NetworkFault):
    """Half a reply, then silence; the rest comes at the end."""

    def __init__(self, after_bytes: int = 2) -> None:
        super().__init__("stall", lambda proxy: proxy.stall_reply(after_bytes))

    def _proof(self, site: Site, state: Counter[str]) -> str:
        with Talk(site.proxy.path) as talk:
            talk.send("PING")
            part = talk.receive()
            check(part != b"+PONG\r\n", f"PING was answered in full through {site.proxy!r}")
            try:
                more = talk.receive(_QUIET)
            except TimeoutError:
                return f"PING was answered {part!r} and no more"
        raise AssertionError(f"PING was answered {part!r} and then {more!r}")


class Reset(NetworkFault):
    """Connections are reset after their requests have reached the server."""

    def __init__(self) -> None:
        super().__init__("reset", Proxy.reset)

    def _proof(self, site: Site, state: Counter[str]) -> str:
        probe = probe_key()
        answer = what_happens(("127.0.0.1", site.proxy.port), "SET", probe, *_PROBE)
        check(answer == "ConnectionResetError", f"SET by TCP came to {answer}")
        await_that(lambda: _has(site, probe), "the SET has reached the server")
        return "a SET by TCP was served, and its caller got ECONNRESET"


class CutRequests(NetworkFault):
    """The server gets the beginning of a request, then the connection ends."""

    def __init__(self, after_bytes: int = 9) -> None:
        super().__init__("cut-request", lambda proxy: proxy.cut_requests(after_bytes))

    def _proof(self, site: Site, state: Counter[str]) -> str:
        probe = probe_key()
        answer = what_happens(site.proxy.path, "SET", probe, *_PROBE)
        check(answer in ENDS, f"SET came to {answer}")
        check(not _has(site, probe), "the SET was served")
        return f"a SET was not served, its caller got {answer}"


class Refuse(NetworkFault):
    """No server listens at the node's address; open connections were cut."""

    def __init__(self) -> None:
        super().__init__("refuse", Proxy.refuse)

    def _end(self, site: Site, state: Counter[str]) -> None:
        site.proxy.accept()

    def _proof(self, site: Site, state: Counter[str]) -> str:
        addresses: tuple[Address, ...] = (site.proxy.path, ("127.0.0.1", site.proxy.port))
        answers = [what_happens(address) for address in addresses]
        check(answers == ["ConnectionRefusedError"] * 2, f"connecting came to {answers}")
        return "ECONNREFUSED at both addresses"


class BlackHole(NetworkFault):
    """Connections are taken, nothing is answered. At the end what was sent is delivered late, also
    that of connections that were closed since, or with `deliver=False` never.
    """

    def __init__(self, *, deliver: bool = True) -> None:
        name = "black-hole-late" if deliver else "black-hole-lost"
        super().__init__(name, lambda proxy: proxy.black_hole(deliver=deliver))

    def _proof(self, site: Site, state: Counter[str]) -> str:
        probe = probe_key()
        silent = is_silent(site.proxy.path, "SET", probe, *_PROBE, seconds=_QUIET)
        check(silent, f"a SET was answered through {site.proxy!r}")
        check(not _has(site, probe), "the SET was served")
        return "a SET was taken, not answered and not served"


class LostReplies(NetworkFault):
    """One way only: requests are served, nothing is answered. The replies come at the end."""

    def __init__(self) -> None:
        super().__init__("one-way", lambda proxy: proxy.black_hole(requests=False))

    def _proof(self, site: Site, state: Counter[str]) -> str:
        probe = probe_key()
        silent = is_silent(site.proxy.path, "SET", probe, *_PROBE, seconds=_QUIET)
        check(silent, f"a SET was answered through {site.proxy!r}")
        await_that(lambda: _has(site, probe), "the SET was served")
        return "a SET was served and not answered"


# What a caller sees of a connection that was closed: by our Talk, or with unread bytes on it.
ENDS = ("ConnectionAbortedError", "ConnectionResetError", "BrokenPipeError")


def _round_trip(site: Site, *command: str) -> float:
    with Talk(site.proxy.path) as talk:
        began = time.monotonic()
        talk.ask(*command)
        return time.monotonic() - began


def _sees_the_end(talk: Talk) -> None:
    try:
        data = talk.receive()
    except ConnectionAbortedError:
        return
    raise AssertionError(f"instead of the end came {data!r}")


def _has(site: Site, *keys: str) -> bool:
    return bool(site.server.execute("EXISTS", *keys) == len(keys))
