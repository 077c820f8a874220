"""Keys of a Redis or Valkey server that refuse an old fence: your data, not the lock's nodes.

This module has the scripts and the meaning of their replies.  The user's client sends them
(redis-py, valkey-py; a Cluster's client where all keys are in one slot).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeAlias

from quorlock.errors import ConfigError, StaleFence
from quorlock.fencing.fences import as_fence

Text: TypeAlias = str | bytes
Datum: TypeAlias = str | bytes | int | float


# Fences are below 2^53, so Lua compares them exactly. A key that holds no number, or another type,
# refuses every writer rather than none: with an error of the script, or as `nan` by the `not`.
_CLAIM = """\
do
  local seen = redis.call('GET', KEYS[#KEYS])
  if seen and not (tonumber(seen) <= tonumber(ARGV[#ARGV])) then
    return redis.error_reply('STALEFENCE ' .. seen)
  end
  redis.call('SET', KEYS[#KEYS], ARGV[#ARGV])
end
"""


def fenced(script: str) -> str:
    """Return a script that runs yours only if the fence is accepted.

    Give it the key of the fence after all your KEYS, and the fence after all your ARGV.  It replies
    as yours does, or with the error `STALEFENCE n`, where n is the larger fence that was accepted.

    Raises:
        ConfigError: the script is no str, or begins with a line `#!lua`.
    """
    if not isinstance(script, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError("script", script, "give its text as str")
    if script.startswith("#!"):
        raise ConfigError("script", script, "without the line #!lua: ours comes before it")
    return _CLAIM + script


# KEYS[1] key of the fence  ARGV[1] fence
FENCED_CLAIM: Final = fenced("return redis.status_reply('OK')\n")
# KEYS[1] key  KEYS[2] key of the fence  ARGV[1] value  ARGV[2] fence
FENCED_SET: Final = fenced("return redis.call('SET', KEYS[1], ARGV[1])\n")


def _is_text(value: object) -> bool:
    return isinstance(value, (str, bytes))


def _as_bytes(key: object) -> object:
    return key.encode(errors="surrogatepass") if isinstance(key, str) else key


class Client(Protocol):
    """The method of a redis-py or valkey-py client that is used here."""

    def eval(self, script: str, numkeys: int, /, *keys_and_args: Any) -> Any:
        """Run a script."""


class FenceKey:
    """The part of FencedRedis that both APIs share: everything but sending."""

    def __init__(self, client: Client, fence_key: Text) -> None:
        """Set the client, and the key that holds the fence.

        Args:
            client: a client of redis-py or valkey-py.
            fence_key: one key for everything that one lock protects; in a Cluster, in the slot of
                that data.  It must live as long as the data, so it has no ttl.
        """
        if not fence_key or not _is_text(fence_key):
            raise ConfigError("fence_key", fence_key, "give the name of a separate key")
        self._client = client
        self.fence_key = fence_key

    def __repr__(self) -> str:
        # Without the client, whose repr may show a password.
        return f"{type(self).__name__}(fence_key={self.fence_key!r})"

    def _arguments(
        self, script: str, keys: Sequence[Text], args: Sequence[Datum], fence: int | None
    ) -> tuple[Any, ...]:
        """Return the arguments of EVAL. Raises ConfigError."""
        for argument, given in (("keys", keys), ("args", args)):
            # Each letter of a str would be one of them.
            if _is_text(given) or not isinstance(given, Sequence):
                raise ConfigError(argument, type(given).__name__, "give a list, also for one")
        if not all(map(_is_text, keys)):
            raise ConfigError("keys", list(keys), "give their names as str or bytes")
        if _as_bytes(self.fence_key) in map(_as_bytes, keys):
            # The data would replace the record of the fence, and older ones would pass.
            raise ConfigError("keys", self.fence_key, "give keys other than that of the fence")
        return (script, len(keys) + 1, *keys, self.fence_key, *args, as_fence(fence))

    def _reply(self, reply: Any, *, is_awaited: bool) -> Any:
        """Return what EVAL of the client returned. Raises ConfigError if it is no reply."""
        if reply is not self._client and inspect.isawaitable(reply) == is_awaited:
            return reply
        if inspect.iscoroutine(reply):
            reply.close()
        fix = (
            "give a client, and no pipeline, which checks nothing yet; quorlock.fencing takes one"
            " that blocks, quorlock.asyncio.fencing one that is awaited"
        )
        raise ConfigError("client", type(self._client), fix)

    def _refusal(self, error: Exception, fence: int | None) -> StaleFence | None:
        """Return the StaleFence that the server's error stands for; None for another error."""
        word, _, seen = str(error).partition(" ")
        if word != "STALEFENCE" or not seen.isdigit():  # the key holds no fence
            return None
        name = self.fence_key if isinstance(self.fence_key, str) else repr(self.fence_key)
        return StaleFence(name, as_fence(fence), int(seen))


class FencedRedis(FenceKey):
    """A Redis or Valkey server whose data is written under one fence."""

    def claim(self, fence: int | None) -> None:
        """Accept the fence, or raise StaleFence; call it before reading what later writes need."""
        self._ask(FENCED_CLAIM, (), (), fence)

    def set(self, key: Text, value: Datum, fence: int | None) -> None:
        """SET the key, or raise StaleFence."""
        self._ask(FENCED_SET, (key,), (value,), fence)

    def eval(
        self, script: str, keys: Sequence[Text], args: Sequence[Datum], fence: int | None
    ) -> Any:
        """Run your script and return its reply, or raise StaleFence."""
        return self._ask(fenced(script), keys, args, fence)

    def _ask(
        self, script: str, keys: Sequence[Text], args: Sequence[Datum], fence: int | None
    ) -> Any:
        arguments = self._arguments(script, keys, args, fence)
        try:
            return self._reply(self._client.eval(*arguments), is_awaited=False)
        except Exception as error:
            if refusal := self._refusal(error, fence):
                raise refusal from None
            raise
