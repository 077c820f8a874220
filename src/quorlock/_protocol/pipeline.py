"""Requests in flight on one connection, in order, and the replies to them.

A Redis server replies in the order of the requests, so a reply belongs to the oldest pending one.
A request that timed out stays in the queue until its reply has come (rule 3).  Sockets, locks and
time are left to the drivers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any

from quorlock._core.commands import (
    ACQUIRES,
    JOIN,
    LEAVE,
    AcquireAny,
    AnyAcquire,
    Command,
    EnableTracking,
    Extend,
    IssueFence,
    Keep,
    Look,
    Publish,
    Release,
    ScriptedAcquire,
    Share,
    Subscribe,
    release_of,
    replaced_token,
)
from quorlock._core.places import called, channel_of
from quorlock._core.votes import GRANTED
from quorlock._protocol.encoding import encode, encode_eval
from quorlock._protocol.reader import (
    NEED_DATA,
    PARSER_ERRORS,
    ProtocolError,
    PushNotification,
    ReplyError,
    ReplyReader,
    not_redis,
)
from quorlock._protocol.refusals import Refusals
from quorlock._protocol.replies import (
    NONSENSE,
    PLAIN_GRANT_SIZE,
    PLAIN_GRANTS,
    READERS,
    is_of_replica,
)
from quorlock._protocol.requests import (
    NO_RECEIVER,
    PendingRequest,
    ReleaseGroup,
    ReplyReceiver,
    SharedQueue,
    each_of,
    requested,
)
from quorlock._protocol.sent_scripts import SentScripts
from quorlock._protocol.tracking import KeyTracking
from quorlock.errors import VoteCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from quorlock._core.time import Duration, Instant
    from quorlock._core.votes import Answer

__all__ = [
    "NO_RECEIVER",
    "UNCOUNTED_MAX",
    "UNREAD_MAX",
    "CallCallback",
    "Demoted",
    "InvalidationCallback",
    "PendingRequest",
    "ReplyReceiver",
    "RequestPipeline",
    "SharedQueue",
    "exceed_unread_max",
    "replaced_token",
    "requested",
]

# A server that hung reads 16 KiB, executes them, finds that its client has closed the connection,
# and drops the rest: the release of an acquire must be among what it reads.  So a node with this
# many unread bytes gets no new acquires. The releases of those that were sent fit into the rest; so
# do both releases after an exchange.
UNREAD_MAX = 5 * 1024
# Fewer pending requests than this need no count: with their releases they fit, however long.
UNCOUNTED_MAX = 4
# The first of each on a connection is sent in full, and so is the first release: NOSCRIPT would
# cost another round trip.  A round of extensions may not have that time; and nothing may be left
# then that sends a release again, and the key would stay.
_PREPARED = frozenset({ScriptedAcquire, AcquireAny, Share, IssueFence, Keep, Extend, Look})

_ALL_FREED = -3
# Takes the keys of an invalidation: read over this connection, and changed by another client since.
# None: the server was emptied.
InvalidationCallback = Callable[["Sequence[bytes] | None"], None]
# Takes the place and the lock key of a call. Without a place: another client has changed the key,
# or without a key, perhaps all keys.
CallCallback = Callable[[bytes, bytes], None]


class Demoted(ProtocolError):
    """The server is a replica now. It needs a new connection before it may vote again."""

    code = VoteCode.CONNECTION_LOST


class RequestPipeline:
    """The queue of pending requests on one connection, and the reader of its replies."""

    __slots__ = (
        "_full_since",
        "_on_call",
        "_on_invalidation",
        "_reader",
        "_refusals",
        "has_partial_reply",
        "listen_error",
        "max_silence",
        "outgoing",
        "pending",
        "protocol_error",
        "replied_at",
        "sent_scripts",
        "shared",
        "tracking",
    )

    def __init__(self, secret: str | None, max_silence: Duration = 0) -> None:
        self._refusals = Refusals(secret)
        self.pending: deque[PendingRequest] = deque()
        self.shared: SharedQueue | None = None
        # How long a node may keep silent with UNREAD_MAX; more than 0 where many callers share it.
        self.max_silence: Duration = max_silence
        self.replied_at: Instant = 0  # when something came last
        self._full_since: Instant = -1  # `replied_at` when UNREAD_MAX was found exceeded
        self.sent_scripts = SentScripts()
        self.outgoing: bytes = b""  # what the driver must send on our behalf (scripts in full)
        self._on_invalidation: InvalidationCallback | None = None
        self.tracking = KeyTracking()
        self._on_call: CallCallback | None = None
        self.listen_error: str = ""  # why the server sends no calls
        self._reader = ReplyReader()
        self.protocol_error: ProtocolError | None = None
        self.has_partial_reply: bool = False  # the parser has had a part of a reply

    def on_invalidation(self, callback: InvalidationCallback) -> None:
        """Call `callback` when others change a key that is extended from now on."""
        self._on_invalidation = callback
        if not self.tracking.tracks_all:
            self.sent_scripts.has_extend = False

    @property
    def is_listening(self) -> bool:
        """Return whether the server was asked for the calls to an inbox, and can send them."""
        return self._on_call is not None and not self.listen_error

    def subscribe(self, inbox: bytes, on_call: CallCallback, at: Instant) -> bytes:
        """Call `on_call` for every call to this inbox; return the bytes to send.

        Once for a connection, and in RESP3 only: a subscriber could send nothing else in RESP2.  An
        empty message to the same inbox shows whether the user may call.  A refusal of either sets
        `listen_error`.
        """
        self._on_call = on_call
        if self.shared is not None:
            self.shared.flush_to_private()
        channel = channel_of(inbox)
        commands = (Subscribe(channel), Publish(channel))
        self.pending.extend(PendingRequest(command, NO_RECEIVER, 0, at) for command in commands)
        return b"".join(map(encode, commands))

    def append(self, request: PendingRequest, data: bytes) -> bytes:
        """Add a request to the queue and return the bytes to send, `data` as a rule."""
        kind = type(request.command)
        if kind is Release:
            if not self.sent_scripts.has_release:
                request, data = self._prepare(request, data)
        elif kind in _PREPARED and (kind is Look or kind not in self.sent_scripts.kinds):
            request, data = self._prepare(request, data)
        self.pending.append(request)
        return data

    def _prepare(self, request: PendingRequest, data: bytes) -> tuple[PendingRequest, bytes]:
        """Put what tracks its key before a command, and its script in full the first time."""
        command, before = request.command, b""
        if type(command) is Look:
            before = self._enable(self.tracking.before_look(), request)
        if self.sent_scripts.add(command):
            if type(command) is Extend and self._on_invalidation is not None:
                # The extension reads its key, so the server tracks it from then on.
                before = self._enable(self.tracking.before_extension(), request)
            request, data = request._replace(in_full=True), encode_eval(command)
        return request, before + data

    def is_backlogged(self, at: Instant) -> bool:
        """Return True if a new acquire could be cut off from its release; see UNREAD_MAX."""
        if len(self.pending) < UNCOUNTED_MAX or not self._is_silent(at):
            return False
        # Until the next reply, it can only become more.
        if self._full_since != self.replied_at and exceed_unread_max(list(self.pending)):
            self._full_since = self.replied_at
        return self._full_since == self.replied_at

    def _is_silent(self, at: Instant) -> bool:
        return self.silence(at) >= self.max_silence

    def silence(self, at: Instant) -> Duration:
        """Return for how long requests have been pending without any reply."""
        return at - max(self.replied_at, self.oldest_asked_at(at))

    def oldest_asked_at(self, at: Instant) -> Instant:
        """Return when the oldest pending request was made; `at` if there is none."""
        try:
            return self.pending[0].asked_at  # one step: other threads ask as well
        except IndexError:
            return at

    def match_grants(self, data: bytes) -> list[PendingRequest]:
        """Return the requests that these bytes grant, if they are plain grants and nothing else.

        They nearly always are where many threads share a connection. Empty: they may be anything.
        """
        count, rest = divmod(len(data), PLAIN_GRANT_SIZE)
        if rest or self.has_partial_reply or len(self.pending) < count:
            return []
        requests = list(islice(self.pending, count))
        if data != b"".join([PLAIN_GRANTS.get(type(q.command), b"") for q in requests]):
            return []
        for _ in requests:
            self.pending.popleft()
        return requests

    def feed(self, data: bytes | bytearray | memoryview, size: int) -> None:
        """Take in the first `size` bytes of what came; the driver notes when (`replied_at`)."""
        self._reader.feed(data, size)
        self.has_partial_reply = True

    def parse_replies(self) -> list[tuple[PendingRequest, Answer]]:
        """Return the requests whose replies have come, with their answers.

        `protocol_error` is set if malformed bytes came: to be raised when these are delivered.
        """
        reader, requests = self._reader, self.pending
        found: list[tuple[PendingRequest, Answer]] = []
        try:
            reply: Any
            while (reply := reader.gets()) is not NEED_DATA:
                reader.unread = 0
                kind: object = reply.__class__
                if kind is PushNotification:
                    self._on_push(reply)
                    self.has_partial_reply = reader.has_data()
                    continue
                # Without any: IndexError, as from a queue that is empty.
                request = (
                    requests.popleft()
                    if requests or self.shared is None
                    else self.shared.take_next()
                )
                if not self._take(request, reply, found):
                    if self.protocol_error is None:
                        name = type(request.command).__name__
                        self.protocol_error = ProtocolError(f"unexpected reply to {name}")
                    break
                # Nearly every answer is the last one that came: nothing is left to parse then.
                self.has_partial_reply = reader.has_data()
                if not self.has_partial_reply:
                    break
        except IndexError:
            self.protocol_error = ProtocolError("replies without a request")
        except PARSER_ERRORS:
            self.protocol_error = not_redis()
        return found

    def _take(
        self, request: PendingRequest, reply: Any, found: list[tuple[PendingRequest, Answer]]
    ) -> bool:
        """Add the answer that a reply is, if any; return false if no later reply may count."""
        if isinstance(request.receiver, ReleaseGroup):
            return self._take_for_group(request, request.receiver, reply, found)
        if reply.__class__ is ReplyError:
            self._on_error(request, str(reply), found)
            return self.protocol_error is None
        answer = READERS[type(request.command)](reply)
        if answer is NONSENSE or answer.before > len(getattr(request.command, "also", ())):
            self.pending.appendleft(request)  # not answered: it may have been granted
            return False
        found.append((request, answer))
        if type(request.command) is Subscribe:
            self.listen_error = "replies to SUBSCRIBE, where RESP3 has a push"
        return True

    def _take_for_group(
        self,
        request: PendingRequest,
        group: ReleaseGroup,
        reply: Any,
        found: list[tuple[PendingRequest, Answer]],
    ) -> bool:
        kind: object = reply.__class__
        if kind is int and reply == _ALL_FREED:
            found.extend([(one, GRANTED) for one in group.requests])
        elif kind is ReplyError or (kind is int and reply == 0):
            # One of them is to be handed on or is gone, or the server refuses: each asks alone.
            if str(reply).startswith("NOSCRIPT"):
                self.sent_scripts.forget(request.command)
            self._check_role(str(reply))
            if self.shared is not None:
                self.shared.flush_to_private()
            for one in group.separate():
                self.outgoing += self.append(one, encode(one.command))
        else:
            self.pending.appendleft(request)
            return False
        return self.protocol_error is None

    def _on_error(
        self, request: PendingRequest, error: str, found: list[tuple[PendingRequest, Answer]]
    ) -> None:
        """Add the answer to the others, if the request has a receiver and is not sent again."""
        kind = type(request.command)
        if kind is Subscribe or kind is Publish:
            why = self._refusals.answer(error, request, self.pending).text
            self.listen_error = self.listen_error or why
        elif isinstance(request.command, EnableTracking):
            self.tracking.on_refused(request.command)
        elif not self._resend_script(request, error):
            found.append((request, self._refused(request, error)))

    def _refused(self, request: PendingRequest, error: str) -> Answer:
        self._check_role(error)
        return self._refusals.answer(error, request, self.pending)

    def _check_role(self, error: str) -> None:
        # It may be a master again by the next reply, without the keys that it had.
        if is_of_replica(error):
            self.protocol_error = Demoted("connection given up: it is a replica, or loads data")

    def keys_in_doubt(self) -> Iterator[AnyAcquire | Release]:
        """Yield pending commands that may leave a key on the node; releases without their place.

        An exchange may leave either of its tokens there.
        """
        for request in each_of(tuple(self.pending)):
            command = request.command
            if isinstance(command, ACQUIRES):
                yield command
            if isinstance(command, Release) and command.token:
                yield release_of(command)
            if (replaced := replaced_lease(command)) is not None:
                yield replaced

    def has_pending_acquire(self, token: bytes) -> bool:
        """Return True if the acquire with this token is still pending here."""
        # A list: other threads ask as well, and making a tuple may collect garbage (CPython 3.11).
        commands = (request.command for request in list(self.pending))
        return any(isinstance(c, ACQUIRES) and c.token == token for c in commands)

    def _enable(self, commands: tuple[EnableTracking, ...], before: PendingRequest) -> bytes:
        self.pending.extend([PendingRequest(c, NO_RECEIVER, 0, before.asked_at) for c in commands])
        return b"".join([encode(command) for command in commands])

    def _on_push(self, push: list[Any]) -> None:
        """Pass the keys of an invalidation on, or a call; ignore any other push."""
        if len(push) == 3 and self._on_call is not None:  # noqa: PLR2004
            self._on_message(push[0], push[2], self._on_call)
        elif len(push) == 2 and push[0] == b"invalidate":  # noqa: PLR2004
            found: list[Any] | None = push[1]
            self._on_changed(None if found is None else [k for k in found if isinstance(k, bytes)])

    def _on_changed(self, keys: list[bytes] | None) -> None:
        if self._on_invalidation is not None:
            self._on_invalidation(keys)
        if self._on_call is not None:
            for key in [b""] if keys is None else keys:
                self._on_call(b"", key)

    def _on_message(self, kind: Any, content: Any, on_call: CallCallback) -> None:
        if kind == b"subscribe" and self.pending and type(self.pending[0].command) is Subscribe:
            self.pending.popleft()  # its reply, in its place among the replies
        if kind == b"message" and isinstance(content, bytes):
            place, key = called(content)
            if place:
                on_call(place, key)

    def _resend_script(self, request: PendingRequest, error: str) -> bool:
        """Send a script in full that the node has forgotten, at the end of the queue; once.

        Releases are always resent, other commands only while their receiver waits: the key of an
        acquire whose round is over would not be released.  Before that, the release of its token is
        still to come, behind it.  So is the removal of a place.  A release does not queue a place
        again behind later requests with that place, which may have removed it.
        """
        command = request.command
        if not error.startswith("NOSCRIPT") or request.in_full:
            return False
        is_late = False
        if isinstance(command, Release) and command.place and command.ticket >= JOIN:
            is_late = any(_place(later.command) == command.place for later in self.pending)
            command = release_of(command) if is_late else command
        frees = isinstance(command, Release) and (command.token or command.ticket == LEAVE)
        if not frees and (is_late or _is_over(request)):
            self.sent_scripts.forget(command)
            return False
        if self.shared is not None:
            self.shared.flush_to_private()
        self.outgoing += encode_eval(command)
        self.pending.append(request._replace(command=command, in_full=True))
        return True


def exceed_unread_max(requests: Iterable[PendingRequest]) -> bool:
    """Return whether the bytes of these requests exceed UNREAD_MAX; scripts count by their names.

    Looks no further than that: there may be many.
    """
    sizes = accumulate(len(encode(request.command)) for request in each_of(requests))
    return any(size > UNREAD_MAX for size in sizes)


def _place(command: Command) -> bytes:
    return command.place if isinstance(command, (Release, ScriptedAcquire)) else b""


def replaced_lease(command: Command) -> Release | None:
    """Return the release of the token that an exchange replaces; None for other commands."""
    token = replaced_token(command)
    return Release(command.key, token) if token else None


def _is_over(request: PendingRequest) -> bool:
    """Return True if its receiver waits no longer, or is past the round of this acquire."""
    receiver = request.receiver
    return receiver.over or (
        isinstance(request.command, ACQUIRES) and receiver.round != request.round
    )
