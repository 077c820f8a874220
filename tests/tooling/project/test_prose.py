"""Plain English in docstrings and comments: the counts of what is ruled out may only fall.

What the documentation calls `Class.member` exists.
"""

import pytest

from tests.tooling.project import members, prose
from tests.tooling.project.prose import Counts

# The counts of each folder may not rise above these. Lower a row when its folder gets better
# (`python -m tests.tooling.project.prose` prints the rows); without a row, a folder has
# none to spare.
CEILINGS = {
    "_api": Counts(0, 0, 0),
    "_core": Counts(0, 0, 0),
    "_drivers": Counts(0, 0, 0),
    "_nodes": Counts(0, 0, 0),
    "_protocol": Counts(0, 0, 0),
    "_sync": Counts(0, 0, 0),
    "asyncio": Counts(0, 0, 0),
    "_cli": Counts(0, 0, 0),
    "_demo": Counts(0, 0, 0),
    "errors.py": Counts(0, 0, 0),
    "fencing": Counts(0, 0, 0),
    "quorlock_sim": Counts(0, 0, 0),
    "testing": Counts(0, 0, 0),
    "bench": Counts(0, 0, 0),
    "examples": Counts(0, 0, 0),
    "spec": Counts(0, 0, 0),
    "tests": Counts(2, 6, 24),
    "tools": Counts(0, 0, 0),
}
_NONE = Counts(0, 0, 0)


def test_prose_gets_no_worse(capsys: pytest.CaptureFixture[str]) -> None:
    found = {name: counts._replace(words=0) for name, counts in prose.counts().items()}
    rows = {name: (counts, CEILINGS.get(name, _NONE)) for name, counts in found.items()}
    worse = [name for name, (now, ceiling) in rows.items() if any(map(int.__gt__, now, ceiling))]
    better = [f'"{name}": {now}' for name, (now, ceiling) in rows.items() if now != ceiling]
    assert not worse, (
        "Say these in plain words: "
        + "; ".join(f"{name} has {rows[name][0]}, at most {rows[name][1]}" for name in worse)
        + f". `python tests/tooling/project/prose.py {' '.join(worse)}` prints the places."
    )
    if better:
        with capsys.disabled():
            print(f"\nprose: lower the table in test_prose.py to {', '.join(better)}")


def test_each_row_has_its_folder() -> None:
    assert set(CEILINGS) <= set(prose.folders())


@pytest.mark.parametrize(
    ("docstring", "is_ruled_out"),
    [
        ("Return the votes that are needed.", False),
        ("One connection to each node.", False),
        ("The time at which it ends.", False),
        ("Forget the keys.", False),
        ("`node` is forgotten.", False),
        ("It forgets.", True),
        ("Whether a quorum replied.", True),
        ("(By another thread.)", True),
        ("The same for asyncio.", True),
    ],
)
def test_openings(docstring: str, is_ruled_out: bool) -> None:
    source = f'def f() -> None:\n    """{docstring}"""\n'
    assert prose.count({"x.py": source}).openings == is_ruled_out


def test_words_of_docstrings_and_comments_are_counted_and_code_is_not() -> None:
    source = (
        '"""The keys that nobody\nowes, of `nobody`."""\n'
        "told = 'whoever'  # Somebody is\n"
        "# told of it, at\n# the most once.\n"
        'def f() -> None:\n    """See the module."""\n'
    )
    assert prose.count({"x.py": source}) == Counts(0, 2, 4, words=19)


def test_members_in_the_documentation_exist() -> None:
    missing = members.missing(members.named(members.documentation()), members.in_library())
    assert not missing, "No class has " + "; ".join(
        f"{name.owner}.{name.member} ({name.place})" for name in missing
    )


def test_a_member_that_no_class_has_is_found() -> None:
    source = """
class Base:
    left: int
    RIGHT = 1
    def __init__(self) -> None:
        self.old, self._other = 1, 2

class Lock(Base):
    def acquire(self) -> None: ...
"""
    text = "`Lock.acquire(timeout=1)`, `a.b.Lock.left`,\n`Lock.RIGHT`, `Lock._other`, `Lock.gone`"
    names = list(members.named({"a.md": text + ", `Nobody.left`, Lock.none, `TLSv1.2`"}))
    assert [(name.owner, name.member) for name in names] == [
        *(("Lock", "acquire"), ("Lock", "left"), ("Lock", "RIGHT"), ("Lock", "_other")),
        *(("Lock", "gone"), ("Nobody", "left")),
    ]
    missing = members.missing(names, members.members([source]))
    assert missing == [("a.md:2", "Lock", "gone"), ("a.md:2", "Nobody", "left")]
