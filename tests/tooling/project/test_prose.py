"""Plain English in docstrings and comments, and `Class.member` in the documentation exists."""

import pytest

from tests.tooling.project import members, prose
from tests.tooling.project.prose import Counts


def test_no_prose_breaks_a_rule() -> None:
    broken = {name: counts for name, counts in prose.counts().items() if any(counts)}
    assert not broken, (
        "Say these in plain words: "
        + "; ".join(f"{name} has {counts}" for name, counts in broken.items())
        + f". `python tests/tooling/project/prose.py {' '.join(broken)}` prints the places."
    )


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
    assert prose.count({"x.py": source}) == Counts(0, 2, 4)


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
