"""valkey-glide: a hand-written Redlock over several of its clients, as for redis.asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glide import (
    ConditionalChange,
    ExpirySet,
    ExpiryType,
    GlideClient,
    GlideClientConfiguration,
    NodeAddress,
    Script,
)

from bench.contestants.clients import TIMEOUT, address
from bench.contestants.redis_py import GatherAsyncio

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


class GlideGather(GatherAsyncio):
    """`SET NX PX` on all clients, gathered. Each client has one connection for all tasks."""

    async def open(self) -> None:
        await super().open()
        for client in self._clients:
            await client.open()

    def _client(self, url: str) -> _Client:
        return _Client(url)


class _Client:
    """A client of valkey-glide, as `GatherAsyncio` calls those of redis-py."""

    def __init__(self, url: str) -> None:
        nodes = [NodeAddress(*address(url))]
        self._configuration = GlideClientConfiguration(nodes, request_timeout=int(TIMEOUT * 1000))

    async def open(self) -> None:
        self._glide: Any = await GlideClient.create(self._configuration)

    async def set(self, resource: str, token: str, *, nx: bool, px: int) -> bool:
        only_if = ConditionalChange.ONLY_IF_DOES_NOT_EXIST if nx else None
        expiry = ExpirySet(ExpiryType.MILLSEC, px)
        return bool(await self._glide.set(resource, token, conditional_set=only_if, expiry=expiry))

    def register_script(self, text: bytes) -> Callable[..., Coroutine[Any, Any, Any]]:
        script = Script(text.decode())

        async def run(keys: list[str], args: list[Any]) -> Any:
            return await self._glide.invoke_script(script, keys=keys, args=[str(a) for a in args])

        return run

    async def aclose(self) -> None:
        await self._glide.close()
