"""Keys of a Redis or Valkey server that refuse an old fence. Not the lock's nodes: your data.

Owns the scripts and what their replies mean.  Leaves talking to the server to the client that it
is given (redis-py, valkey-py; a Cluster's client where all keys are of one slot).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from quorlock.errors import ConfigError, StaleFence
from quorlock.fencing.fences import as_fence

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    Text: TypeAlias = str | bytes
    Datum: TypeAlias = str | bytes | int | float

# Fences are below 2^53, so Lua compares them exactly. A key that is no number, or of another
# type, is an error of the script: it refuses everybody rather than nobody.
_CLAIM = """\
do
  local seen = redis.call('GET', KEYS[#KEYS])
  if seen and tonumber(seen) > tonumber(ARGV[#ARGV]) then
    return redis.error_reply('STALEFENCE ' .. seen)
  end
  redis.call('SET', KEYS[#KEYS], ARGV[#ARGV])
end
"""


def fenced(script: str) -> str:
    """The text of a script that runs yours only if the fence is accepted.

    Give it the key of the fence after all your KEYS, and the fence after all your ARGV. It replies
    what yours does, or with the error `STALEFENCE n`, n being the larger one that it has seen.
    """
    if script.startswith("#!"):
        raise ConfigError("script", script, "without the line #!lua: ours comes before it")
    return _CLAIM + script


# KEYS[1] key of the fence  ARGV[1] fence
FENCED_CLAIM: Final = fenced("return redis.status_reply('OK')\n")
# KEYS[1] key  KEYS[2] key of the fence  ARGV[1] value  ARGV[2] fence
FENCED_SET: Final = fenced("return redis.call('SET', KEYS[1], ARGV[1])\n")


class Client(Protocol):
    """What is used of a client of redis-py or valkey-py."""

    def eval(self, script: str, numkeys: int, /, *keys_and_args: Any) -> Any:
        """Run a script."""


class FenceKey:
    """What both faces of FencedRedis share: all but the asking."""

    def __init__(self, client: Client, fence_key: Text) -> None:
        """Name the client, and the key that holds the fence.

        One fence key for all that one lock protects; in a Cluster, in the slot of that data. It is
        to live as long as the data, so it has no ttl.
        """
        if not fence_key:
            raise ConfigError("fence_key", fence_key, "give the name of a key of its own")
        self._client = client
        self.fence_key = fence_key

    def __repr__(self) -> str:
        # Without the client, whose repr may show a password.
        return f"{type(self).__name__}(fence_key={self.fence_key!r})"

    def _arguments(
        self, script: str, keys: Sequence[Text], args: Sequence[Datum], fence: int | None
    ) -> tuple[Any, ...]:
        """What EVAL takes."""
        return (script, len(keys) + 1, *keys, self.fence_key, *args, as_fence(fence))

    def _refusal(self, error: Exception, fence: int | None) -> StaleFence | None:
        """What the server's error means, if it is ours."""
        word, _, seen = str(error).partition(" ")
        if word != "STALEFENCE":
            return None
        name = self.fence_key if isinstance(self.fence_key, str) else repr(self.fence_key)
        return StaleFence(name, as_fence(fence), int(seen))


class FencedRedis(FenceKey):
    """A Redis or Valkey server whose data is written under one fence."""

    def claim(self, fence: int | None) -> None:
        """Accept the fence, or raise StaleFence: before reading what later writes depend on."""
        self._ask(FENCED_CLAIM, (), (), fence)

    def set(self, key: Text, value: Datum, fence: int | None) -> None:
        """SET the key, or raise StaleFence."""
        self._ask(FENCED_SET, (key,), (value,), fence)

    def eval(
        self, script: str, keys: Sequence[Text], args: Sequence[Datum], fence: int | None
    ) -> Any:
        """Run a script of yours and return its reply, or raise StaleFence."""
        return self._ask(fenced(script), keys, args, fence)

    def _ask(
        self, script: str, keys: Sequence[Text], args: Sequence[Datum], fence: int | None
    ) -> Any:
        arguments = self._arguments(script, keys, args, fence)
        try:
            return self._client.eval(*arguments)
        except Exception as error:
            if refusal := self._refusal(error, fence):
                raise refusal from None
            raise
