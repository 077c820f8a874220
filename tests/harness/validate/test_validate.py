"""The judge sees what is wrong with made-up histories, and nothing in good ones."""

from __future__ import annotations

import ast
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from quorlock.testing.servers import Servers
from tests.harness.validate import nodes
from tests.harness.validate.history import History, Stay
from tests.harness.validate.judge import CLOCK_NS, around, broken_words, describe, judge, overlaps

HERE = Path(__file__).parent
MS = 1_000_000
SLACK = 10 * MS


def stay(began: int, ended: int | None, until: int = 1000, resource: str = "r") -> Stay:
    stay.count += 1  # type: ignore[attr-defined]
    number = stay.count  # type: ignore[attr-defined]
    return Stay(1, number, resource, f"token{number}", began, until, ended)


stay.count = 0  # type: ignore[attr-defined]


class Book:
    """Writes records as the traffic does, with any clock."""

    def __init__(self, folder: Path, pid: int = 1) -> None:
        self.folder = folder
        self.pid = pid
        self.path = folder / f"{pid}-made-up.jsonl"
        self.note("hello", 0, face="blocking", workers=1)

    def note(self, what: str, at: int, **facts: Any) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"what": what, "at": at, "pid": self.pid, **facts}) + "\n")

    def begin(self, turn: int, at: int, until: int, token: str = "", resource: str = "r") -> None:
        token = token or f"{self.pid}/{turn}"
        self.note("begin", at, turn=turn, resource=resource, token=token, until=until)

    def end(self, turn: int, at: int, how: str = "released") -> None:
        self.note("end", at, turn=turn, how=how)

    def call(
        self, number: int, at: int, due: int | None, returned: int | None, **facts: Any
    ) -> None:
        self.note("asks", at, call=number, who="thread 1", verb="acquire", due=due, slack=SLACK)
        if returned is not None:
            facts = {"outcome": "Lease", "stalled": 0} | facts
            self.note("returned", returned, call=number, **facts)

    def wrongs(self, *killed: int, over: bool = True) -> list[str]:
        """Return the findings of the validator."""
        return judge(History(self.folder).follow(), frozenset(killed), over=over).wrongs


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return Book(tmp_path)


# --- overlaps --------------------------------------------------------------------------------


# --- instants that a holder was given ----------------------------------------------------------


def broken_promises(
    tmp_path: Path, *, how: str, gives_up_at: int | None, other_at: int
) -> list[str]:
    """Return the findings if a holder was given 100 ms, ended at 50, and another began later."""
    one, other = Book(tmp_path), Book(tmp_path, 2)
    one.begin(1, 0, 80 * MS)
    one.note("still", 10 * MS, turn=1, until=100 * MS)
    one.end(1, 50 * MS, how)
    if gives_up_at is not None:
        one.note("gives up", gives_up_at, turn=1)
    other.begin(1, other_at, 500 * MS)
    history = History(tmp_path).follow()
    assert overlaps(history.stays.values()) == []
    return [word for word in judge(history, over=False).wrongs if "was promised" in word]


def test_a_promised_validity_binds_after_the_lease_is_lost(tmp_path: Path) -> None:
    (wrong,) = broken_promises(tmp_path, how="lost", gives_up_at=None, other_at=60 * MS)
    assert wrong.startswith("granted 40.000 ms before the end of what another was promised")


def test_it_binds_no_longer_than_that(tmp_path: Path) -> None:
    assert broken_promises(tmp_path, how="lost", gives_up_at=None, other_at=100 * MS) == []
    assert (
        broken_promises(tmp_path, how="lost", gives_up_at=None, other_at=100 * MS - CLOCK_NS) == []
    )


@pytest.mark.parametrize("how", ["lost", "released", "handed over"])
def test_who_gives_its_lease_up_relies_on_nothing(tmp_path: Path, how: str) -> None:
    assert broken_promises(tmp_path, how=how, gives_up_at=55 * MS, other_at=60 * MS) == []


def test_a_validity_promised_before_a_sleep_ends_with_the_sleep(tmp_path: Path) -> None:
    """The duration of a sleep is unknown; instants that were given afterwards are binding."""
    holder, other = Book(tmp_path), Book(tmp_path, 2)
    holder.begin(1, 0, 100 * MS)
    holder.end(1, 51 * MS, "lost")
    holder.begin(2, 52 * MS, 200 * MS, resource="s")
    holder.end(2, 60 * MS, "lost")
    (tmp_path / "0-sleeps.jsonl").write_text('{"what": "slept", "at": 50000000, "pid": 1}\n')
    other.begin(1, 53 * MS, 500 * MS)
    other.begin(2, 70 * MS, 500 * MS, resource="s")
    history = History(tmp_path).follow()
    ((one, two),) = broken_words(history.stays.values())
    assert (one.resource, two.resource) == ("s", "s")
    assert overlaps(history.stays.values()) == []


def test_an_overlap_is_reported_once(tmp_path: Path) -> None:
    one, other = Book(tmp_path), Book(tmp_path, 2)
    one.begin(1, 0, 80 * MS)
    other.begin(1, 20 * MS, 90 * MS)
    history = History(tmp_path).follow()
    assert len(overlaps(history.stays.values())) == 1
    assert broken_words(history.stays.values()) == []


def test_an_overlap_is_found() -> None:
    one, other = stay(10, 30), stay(29, 40)
    assert overlaps([other, one]) == [(one, other)]
    assert "0.000 ms" in describe((one, other))


def test_touching_stays_do_not_overlap() -> None:
    assert overlaps([stay(10, 30), stay(30, 40), stay(40, 50)]) == []


def test_other_resources_do_not_overlap() -> None:
    assert overlaps([stay(10, 30), stay(10, 30, resource="s")]) == []


def test_the_longest_counts_not_the_last() -> None:
    """A short stay between hides nothing."""
    longest, short, late = stay(0, 100), stay(10, 20), stay(50, 60)
    assert overlaps([longest, short, late]) == [(longest, short), (longest, late)]


def test_a_holder_that_never_said_the_end_holds_until_its_validity_ends() -> None:
    """Killed or paused: it may be trusted no longer, and no shorter."""
    crashed = stay(10, None, until=50)
    assert overlaps([crashed, stay(50, 60)]) == []
    assert len(overlaps([crashed, stay(49, 60)])) == 1


def test_a_holder_that_woke_late_held_until_its_validity_ended() -> None:
    assert overlaps([stay(10, 500, until=50), stay(50, 60)]) == []


def test_a_lease_that_was_over_when_it_came_is_no_stay() -> None:
    assert overlaps([stay(10, 30), stay(20, 21, until=15), stay(25, 26, until=25)]) == []


def test_overlaps_are_those_that_a_plain_comparison_finds() -> None:
    """Every stay that the sweep names meets another, and none that meets another goes unnamed."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    entropy = random.Random(seed)
    for _ in range(200):
        stays = []
        for _ in range(entropy.randrange(2, 12)):
            began = entropy.randrange(40)
            stays.append(stay(began, began + entropy.randrange(12), resource=entropy.choice("rs")))
        named = {id(later) for _, later in overlaps(stays)}
        lasting = sorted((s for s in stays if s.end > s.began), key=lambda s: s.began)
        met = {
            id(later)
            for index, later in enumerate(lasting)
            if any(s.resource == later.resource and s.end > later.began for s in lasting[:index])
        }
        assert named == met


def test_a_hundred_thousand_stays_are_no_matter() -> None:
    """The sweep is no comparison of all with all: that would be five thousand million pairs."""
    stays = [stay(at, at + 1, until=10**9) for at in range(100_000)]
    random.shuffle(stays)
    began = time.process_time()
    assert overlaps(stays) == []
    assert time.process_time() - began < 30


# --- the rest of the judgement ---------------------------------------------------------------


def test_a_good_history(book: Book) -> None:
    book.call(1, 1, due=100, returned=5)
    book.begin(2, 10, until=90)
    book.note("wrote", 11, turn=2, late=False)
    book.note("still", 20, turn=2)
    book.note("extended", 30, turn=2, until=200)
    book.end(2, 40)
    book.note("bye", 50)
    history = History(book.folder).follow()
    judgement = judge(history)
    assert judgement.content, str(judgement)
    assert judgement.turns == {1: 1}
    assert history.turns() == {"blocking": 1}
    assert history.grants(10, 11) == {"blocking": 1}
    assert history.grants(11, 99) == {}
    assert history.outcomes == {("acquire", "Lease"): 1}
    assert str(judgement) == "nothing is wrong"


def test_records_may_come_in_any_order_of_time(book: Book) -> None:
    """Threads read the clock before they write: lines of one file are not in its order."""
    book.begin(1, 50, until=90)
    book.begin(2, 10, until=90)
    book.end(1, 60)
    book.end(2, 40)
    book.note("bye", 70)
    assert judge(History(book.folder).follow()).content
    book.begin(3, 39, until=90)
    book.end(3, 45)
    assert len(judge(History(book.folder).follow()).overlaps) == 1


def test_two_files_are_one_history(book: Book) -> None:
    other = Book(book.folder, pid=2)
    book.begin(1, 10, until=90)
    other.begin(1, 20, until=90)
    history = History(book.folder).follow()
    (pair,) = judge(history, over=False).overlaps
    assert [s.pid for s in pair] == [1, 2]
    assert len(around(history, pair)) == 2
    assert "OVERLAP of 0.000 ms" in str(judge(history, over=False))


def test_an_extension_is_part_of_the_stay(book: Book) -> None:
    book.begin(1, 10, until=20)
    book.note("extended", 15, turn=1, until=50)
    book.begin(2, 40, until=90)
    assert len(judge(History(book.folder).follow()).overlaps) == 1


def test_a_file_is_followed_while_it_grows(book: Book) -> None:
    history = History(book.folder)
    book.begin(1, 10, until=90)
    with book.path.open("a") as file:
        file.write('{"what": "end", "at": 20, "pid": 1, ')
    assert history.follow().stays[1, 1].ended is None
    assert list(history.cut) == [1]
    with book.path.open("a") as file:
        file.write('"turn": 1, "how": "released"}\n')
    assert history.follow().stays[1, 1].ended == 20
    assert history.cut == {}


def test_what_is_not_known_yet_is_not_settled(book: Book) -> None:
    book.begin(1, 10, until=90)
    book.begin(2, 20, until=50)
    book.begin(3, 30, until=90)
    book.end(3, 40)
    settled = History(book.folder).follow().settled(before=60)
    assert [stay.turn for stay in settled] == [2, 3]


def test_a_long_run_forgets_calls_that_went_well(book: Book) -> None:
    """And keeps those that are late, that failed, or that have not ended."""
    book.call(1, 0, due=100, returned=5)
    book.call(2, 0, due=100, returned=SLACK + 500)
    book.call(
        3,
        0,
        due=100,
        returned=5,
        outcome="AcquireTimeout",
        nodes=5,
        answered=2,
        unfit=0,
        quarantined=0,
    )
    book.call(4, 0, due=100, returned=None)
    history = History(book.folder, keep_calls=False).follow()
    assert [number for _, number in history.calls] == [2, 3, 4]
    assert history.outcomes == {("acquire", "Lease"): 2, ("acquire", "AcquireTimeout"): 1}
    assert len(judge(history).wrongs) == 4


def test_a_killed_process_is_excused_and_no_other(book: Book) -> None:
    """A killed process holds until its validity ends, its calls never end, its last line is
    truncated.
    """
    book.call(1, 1, due=2, returned=None)
    book.begin(2, 10, until=90)
    with book.path.open("a") as file:
        file.write('{"what": "still", "at": 2')
    assert book.wrongs(1) == []
    wrongs = " ".join(book.wrongs())
    for word in ("never said bye", "never ended", "never said that it ended", "is cut"):
        assert word in wrongs
    assert book.wrongs(over=False) == []


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("nonsense\n", "unreadable"),
        ('{"what": "begin", "at": 1}\n', "unreadable"),
        ('{"what": "unheard of", "at": 1, "pid": 1}\n', "unreadable"),
        ('{"what": "end", "at": 1, "pid": 1, "turn": 77, "how": "released"}\n', "unreadable"),
        ('{"what": "defect", "at": 1, "pid": 1, "who": "x", "text": "boom"}\n', "boom"),
    ],
)
def test_unreadable_lines_and_defects_are_reported(book: Book, line: str, word: str) -> None:
    with book.path.open("a") as file:
        file.write(line)
    book.note("bye", 70)
    (wrong,) = book.wrongs()
    assert word in wrong


def test_a_lease_that_lies_is_found(book: Book) -> None:
    """`held` said yes after `valid_until`."""
    book.begin(1, 10, until=20 * MS)
    book.note("still", 20 * MS, turn=1)
    assert book.wrongs(over=False) == []
    book.note("still", 21 * MS, turn=1)
    assert "1.000 ms after its validity ended" in book.wrongs(over=False)[0]


def test_an_extension_that_shortens_is_found(book: Book) -> None:
    book.begin(1, 10, until=50)
    book.note("extended", 15, turn=1, until=40)
    assert "shortened" in book.wrongs(over=False)[0]


def test_an_extension_that_was_over_before_it_was_noted_shortens_nothing(book: Book) -> None:
    book.begin(1, 10, until=50)
    book.note("extended", 60, turn=1, until=-5)
    assert book.wrongs(over=False) == []


def test_an_end_before_the_beginning_is_found(book: Book) -> None:
    book.begin(1, 10, until=50)
    book.end(1, 9)
    assert "before it began" in book.wrongs(over=False)[0]


def test_a_token_may_serve_again_only_after_a_hand_over(book: Book) -> None:
    book.begin(1, 10, until=50, token="t")
    book.end(1, 20, how="handed over")
    book.begin(2, 30, until=60, token="t")
    book.end(2, 40)
    assert book.wrongs(over=False) == []
    book.begin(3, 50, until=90, token="t")
    assert "used again" in book.wrongs(over=False)[0]


def test_the_work_of_another_holder_is_found_whatever_the_clocks_show(book: Book) -> None:
    other = Book(book.folder, pid=2)
    book.begin(1, 10, until=50)
    other.begin(7, 60, until=90)
    book.note("met", 40, turn=1, found="2.7")
    assert book.wrongs(over=False) == []  # the time of its write is unknown
    other.note("wrote", 61, turn=7, late=True)
    assert book.wrongs(over=False) == []  # a late writer: its own lease was over
    other.note("wrote", 61, turn=7, late=False)
    assert "it found '2.7'" in book.wrongs(over=False)[0]
    book.note("met", 40, turn=1, found="rubbish")
    assert "it found 'rubbish'" in book.wrongs(over=False)[1]


def test_late_calls_are_reported_with_their_lateness(book: Book) -> None:
    book.call(1, 0, due=100, returned=100)
    book.call(2, 0, due=None, returned=10**12)
    book.call(3, 0, due=100, returned=15 * MS + 100, stalled=5 * MS)
    assert book.wrongs(over=False) == []
    assert History(book.folder).follow().overdue == {"acquire": SLACK}
    book.call(4, 0, due=100, returned=15 * MS + 100, stalled=2 * MS)
    assert "late by 0.013 s" in book.wrongs(over=False)[0]


@pytest.mark.parametrize(
    ("outcome", "answered", "unfit", "quarantined", "true"),
    [
        ("AcquireTimeout", 3, 0, 0, True),
        ("AcquireTimeout", 2, 0, 0, False),
        ("QuorumUnreachable", 2, 0, 0, True),
        ("QuorumUnreachable", 3, 0, 1, False),
        ("QuorumUnreachable", 4, 2, 0, False),
        ("QuorumUnreachable", 4, 2, 1, True),
        ("NodeError", 3, 1, 0, True),
        ("NodeError", 5, 0, 0, False),
    ],
)
def test_an_error_is_compared_with_its_votes(
    book: Book, outcome: str, answered: int, unfit: int, quarantined: int, true: bool
) -> None:
    votes = {"nodes": 5, "answered": answered, "unfit": unfit, "quarantined": quarantined}
    book.call(1, 0, due=None, returned=5, outcome=outcome, granted=0, text="", **votes)
    assert (book.wrongs(over=False) == []) is true


# --- nodes -----------------------------------------------------------------------------------


def test_what_nodes_have_is_read_past_the_library(nodes_of_ours: Servers, book: Book) -> None:
    nodes_of_ours[0].execute("SET", "a", "secret", "PX", 60_000)
    nodes_of_ours[1].execute("SET", "b", "x")
    a, b = nodes.keys(server.path for server in nodes_of_ours)
    assert (a.name, a.token) == (b"a", b"secret")
    assert 0 < a.pttl_ms <= 60_000
    assert (b.node, b.pttl_ms) == (nodes_of_ours[1].path, -1)


@pytest.fixture
def nodes_of_ours(nodes: Servers) -> Servers:
    """The session's servers, under a name that is not the module's."""
    return nodes


def key(token: bytes, pttl_ms: int) -> nodes.Key:
    return nodes.Key("a.sock", b"r", token, pttl_ms)


def test_only_keys_of_the_killed_and_the_handed_over_may_be_left(book: Book) -> None:
    """Keys of both kinds may be left for at most a ttl."""
    theirs = key(b"t", 500)
    history = History(book.folder)
    book.begin(1, 10, until=50, token=theirs.digest)
    book.end(1, 20)
    history.follow()
    (left,) = nodes.not_excused([theirs], history, frozenset(), 1000)
    assert "left behind" in left
    assert "turn 1.1" in left
    assert nodes.not_excused([theirs], history, {1}, 1000) == []
    assert nodes.not_excused([key(b"t", 1001)], history, {1}, 1000) != []
    assert nodes.not_excused([key(b"t", -1)], history, {1}, 1000) != []
    assert nodes.not_excused([key(b"t", -2)], history, frozenset(), 1000) == []
    book.end(1, 20, how="handed over")
    assert nodes.not_excused([theirs], history.follow(), frozenset(), 1000) == []
    (left,) = nodes.not_excused([key(b"u", 5)], history, frozenset(), 1000)
    assert "of nobody who ever held it" in left


def test_a_node_that_replies_with_an_error_is_reported(
    nodes_of_ours: Servers,
) -> None:
    nodes_of_ours[0].execute("RPUSH", "a", "x")
    with pytest.raises(ConnectionError, match="WRONGTYPE"):
        nodes.keys([nodes_of_ours[0].path])


# --- independence ----------------------------------------------------------------------------


def test_the_validator_is_independent_of_the_library() -> None:
    """The validator imports only itself and the standard library."""
    for path in HERE.glob("*.py"):
        if path.name.startswith("test_"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, path
                names = [node.module or ""]
            for name in names:
                own = name.startswith("tests.harness.validate")
                assert own or name.partition(".")[0] in sys.stdlib_module_names, (path, name)
