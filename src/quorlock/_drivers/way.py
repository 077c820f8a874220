"""The way to one node in one event loop: its link, connecting again, paying what is owed.

A task does it, alive only while there is something to do.  Leaves rounds to `engine`.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from quorlock._core.outcomes import Vote
from quorlock._drivers.awaited import Awaited
from quorlock._drivers.clock import now
from quorlock._drivers.dial import tls_words, to_memory, tune
from quorlock._drivers.link import Hears, Link, tuned
from quorlock._drivers.members import Standing
from quorlock._wire.conversation import Question
from quorlock._wire.handshake import HANGS_UP, Handshake, Unfit
from quorlock._wire.packing import pack

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from quorlock._core.effects import Replied
    from quorlock._core.policy import Policy
    from quorlock._core.time import Instant
    from quorlock._drivers.convoy import Convoy
    from quorlock._drivers.members import Member, Members
    from quorlock._wire.conversation import Hint


def silence(task: asyncio.Task[None]) -> None:
    """Let a loop be closed with this task in it without a complaint: nothing is lost by it.

    As asyncio does with its own inner tasks; there is no public way.
    """
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001


class Way:
    """See the module."""

    def __init__(
        self,
        member: Member,
        members: Members,
        policy: Policy,
        on_change: Callable[[], None],
        convoy: Convoy,
    ) -> None:
        self.member = member
        self.bit = 1 << member.index
        self.link: Link | None = None
        self._members = members
        self._connect_timeout = policy.connect_timeout / 1e9
        self._on_change = on_change
        self._convoy = convoy
        self._task: asyncio.Task[None] | None = None
        self._links: set[Link] = set()
        self._closed = False
        self._awaited = Awaited(member)
        self._on_hint: Hint | None = None
        self._news = asyncio.Event()  # the link is gone, or more is owed

    @property
    def hopeful(self) -> bool:
        """Not connected, and nobody has failed to connect yet."""
        return self.link is None and self.member.standing is not Standing.DOWN

    def want(self) -> None:
        """Connect, or pay what is owed, if that is not under way."""
        self._news.set()
        if not self._closed and (self._task is None or self._task.done()):
            name = f"quorlock way to {self.member.address}"
            self._task = asyncio.get_running_loop().create_task(self._work(), name=name)
            silence(self._task)

    def owe(self, question: Question) -> bool:
        """Release that as soon as may be; True: the asker hears what comes of it."""
        return self._awaited.owe(question, closing=self._closed)

    def watch(self, on_hint: Hint) -> None:
        """Have hints given over its links, from the next extension on."""
        self._on_hint = on_hint
        for link in self._links:
            link.conversation.watch(on_hint)

    async def close(self, give_up: float) -> None:
        """End the task and close all connections, sending first what was written."""
        self._closed = True
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self.link is not None:
            self.link = None
            self._on_change()
        waiting = [link.closed for link in self._links]
        for link in self._links:
            link.close()
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=max(0.0, give_up - now() / 1e9))
            if late:
                for link in self._links:
                    link.abort()
                await asyncio.wait(late, timeout=1.0)
        self._links.clear()

    # --- the task ----------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            if self.link is None:
                await _sleep_until(self.member.retry_at)
                await self._connect()
                continue
            due = self.member.debts.next_due()
            if due is None:
                return
            if await self._nothing_new_until(due):
                self._pay()

    async def _nothing_new_until(self, due: Instant) -> bool:
        """Wait for it; False: sooner than that there is something else to do.

        A payment may be due in half a max_ttl: a link that is lost meanwhile must not wait for it.
        """
        self._news.clear()
        try:
            async with asyncio.timeout(max(0, due - now()) / 1e9):
                await self._news.wait()
        except TimeoutError:
            return True
        return False

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(self._connect_timeout):
                link = await self._open()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 (whatever it is, this node does not vote)
            self.member.failed(_as_unfit(error), now())
            self._awaited.give_up(now())
        else:
            self.link = link
            self._pay()  # a debt is paid first thing on the next connection (rule 3)
        self._on_change()

    async def _open(self) -> Link:
        """A connection whose server may vote."""
        node = self.member.node
        username, password = node.authority()
        members = self._members
        handshake = Handshake(node, username, password, members.agreement, marks=members.marks)
        link = Link(self.member, handshake, password, self._lost, self._convoy)
        if self._on_hint is not None:
            link.conversation.watch(self._on_hint)
        link.on_fit = self._on_change
        link.on_end = partial(self._links.discard, link)
        link.on_debt = self.want
        self._links.add(link)
        loop = asyncio.get_running_loop()
        try:
            if node.memory is not None:
                sock = to_memory(node.memory)
                await loop.create_unix_connection(lambda: link, sock=sock)
            elif node.path is not None:
                await loop.create_unix_connection(lambda: link, node.path)
            else:
                tls = self._tls()
                name = node.host if tls is not None else None
                transport, _ = await loop.create_connection(
                    lambda: link, node.host, node.port, ssl=tls, server_hostname=name
                )
                tuned(transport, partial(tune, max_silence_ms=self.member.max_ttl_ms))
            began = now()
            greeting = await link.greeted
            ended = now()
            self.member.latency = ended - began
            link.quarantine = members.admit(self.member, greeting, ended)
        except BaseException:
            link.abort()
            if not link.connected:
                self._links.discard(link)
            raise
        if link.lost:
            raise Unfit(HANGS_UP, lasting=False)
        link.admitted = True
        return link

    def _tls(self) -> ssl.SSLContext | None:
        if self.member.node.tls is None:
            return None
        from quorlock._drivers.tls import context  # imports ssl: only where it is used

        return context(self.member.node.tls)

    def _lost(self, link: Link) -> None:
        if link is self.link:
            self.link = None
            self._on_change()
        if len(self.member.debts):
            self.want()

    def _pay(self) -> None:
        link, at = self.link, now()
        if link is None:
            return
        for release in self.member.debts.due(at):
            receiver = _Payment(self.member, link, release.token, self._awaited)
            link.ask(pack(release), Question(release, receiver, 0, at))


class _Payment(Hears):
    """Hears what became of a release that was owed."""

    over = False

    def __init__(self, member: Member, link: Link, token: bytes, awaited: Awaited) -> None:
        self._member = member
        self._link = link
        self._token = token
        self._awaited = awaited

    def hear(self, reply: Replied) -> None:
        if reply.answer.is_done:
            deleted = reply.answer.vote is Vote.GRANTED
            self._member.debts.answered(self._token, self._link.run_id, deleted=deleted)
        self._awaited.answer(self._token, reply.answer, reply.at)


def _as_unfit(error: Exception) -> Exception:
    if hasattr(error, "verify_message") or type(error).__name__.startswith("SSL"):
        return Unfit(f"TLS failed: {tls_words(error)}", lasting=True)
    return error


async def _sleep_until(instant: int) -> None:
    left = instant - now()
    if left > 0:
        await asyncio.sleep(left / 1e9)
