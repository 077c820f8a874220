"""Counts of words and openings that the style of this project rules out, per folder.

test_prose.py demands that all are zero. `python tests/tooling/project/prose.py FOLDER...` prints
each place in these folders.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
LIBRARY = ROOT / "src" / "quorlock"
# Each of these is one folder of the table; the folders of the library are counted one by one.
BESIDE = ("sim/quorlock_sim", "tools", "bench", "spec", "examples", "tests")

# The reader would have to find out what such a word stands for, or gets no verb.
_OPENINGS = re.compile(
    r"""[^A-Za-z]*(?:
        what | how | whether | who | whom | whose | whoever | when | where | which | why | that
        | it | its | they | them | their | those | these | this | there | such | the\ same
        | of | by | as | in | on | at | for | from | to | with | without | after | before | until
        | while | during | if | else | so | nobody | somebody | not
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)
_INDEFINITE = re.compile(r"\b(?:nobody|somebody|whoever)\b", re.IGNORECASE)
# The field's terms: bytes are received and sent, and releases are pending.
_DIALECT = re.compile(
    r"""\b(?:
        mend(?:s|ed|ing)? | anew | hear(?:s|d|ing)? | r[iau]ng | rings | ringing
        | owe(?:s|d)? | owing | pay(?:s|ing)? | paid | unpaid | forgiv(?:e|es|en|ing) | debts?
        | greet(?:s|ed|ing|ings)? | tell(?:s|ing)? | told | unasked | meanwhile
        | at\ the\ most | of\ ours | of\ (?:its|their)\ own | by\ itself | besides | in\ the\ midst
        | giv(?:e|es|en|ing)\ back | gave\ back | go(?:es|ing)?\ on | See\ the\ module
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)
_CODE = re.compile(r"`[^`]*`")
_STRING_OR_COMMENT = re.compile(
    r'''
        """(?:\\.|[^\\])*?""" | \'\'\'(?:\\.|[^\\])*?\'\'\'
        | "(?:\\.|[^\\"\n])*" | \'(?:\\.|[^\\\'\n])*\' | [#][^\n]*
    ''',
    re.DOTALL | re.VERBOSE,
)


class Text(NamedTuple):
    """One docstring, or one block of comments."""

    line: int
    words: str
    is_docstring: bool


class Counts(NamedTuple):
    """The number of violations of each rule in a folder's prose."""

    openings: int  # docstrings that begin with a pronoun, a preposition or an interrogative
    indefinite: int  # matches of _INDEFINITE
    dialect: int  # matches of _DIALECT


def texts(source: str) -> Iterator[Text]:
    """Yield the docstrings and the comments of a module, without code in back-quotes."""
    for node in blocks(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring is not None:
                line = node.body[0].lineno
                yield Text(line, " ".join(_CODE.sub(" X ", docstring).split()), is_docstring=True)
    block: list[str] = []
    last = 0
    for line, comment in comments(source):
        if line != last + 1 and block:
            yield _comment(last, block)
            block = []
        block.append(comment.lstrip("#: "))
        last = line
    if block:
        yield _comment(last, block)


def blocks(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a module, class, function or other statement, and the statements in it.

    Expressions are most of a module, and have no docstring.
    """
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from blocks(child)


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield the comments with their lines. `tokenize` finds the same in ten times the time."""
    line, at = 1, 0
    for found in _STRING_OR_COMMENT.finditer(source):
        if found[0].startswith("#"):
            line += source.count("\n", at, found.start())
            at = found.start()
            yield line, found[0]


def _comment(last: int, block: list[str]) -> Text:
    words = " ".join(_CODE.sub(" X ", " ".join(block)).split())
    return Text(last - len(block) + 1, words, is_docstring=False)


def is_opening(text: Text) -> bool:
    """Return whether the text is a docstring with a first word that is ruled out."""
    return text.is_docstring and _OPENINGS.match(text.words) is not None


def count(sources: dict[str, str]) -> Counts:
    """Return the counts of some modules."""
    found = [text for source in sources.values() for text in texts(source)]
    return Counts(
        openings=sum(map(is_opening, found)),
        indefinite=sum(len(_INDEFINITE.findall(text.words)) for text in found),
        dialect=sum(len(_DIALECT.findall(text.words)) for text in found),
    )


def folders() -> dict[str, dict[str, str]]:
    """Return the modules of each top folder of the library, and of the folders beside it."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted(LIBRARY.rglob("*.py")):
        name = path.relative_to(LIBRARY).as_posix()
        found.setdefault(name.split("/", 1)[0], {})[name] = path.read_text()
    for folder in (ROOT / name for name in BESIDE):
        found[folder.name] = {
            path.relative_to(folder.parent).as_posix(): path.read_text()
            for path in sorted(folder.rglob("*.py"))
            if ".venv" not in path.parts
        }
    return found


def counts() -> dict[str, Counts]:
    """Return the counts of each folder."""
    return {name: count(sources) for name, sources in folders().items()}


def places(name: str, source: str) -> Iterator[str]:
    """Yield each place of a module where a rule is broken."""
    for text in texts(source):
        if is_opening(text):
            yield f"{name}:{text.line}: opens: {text.words[:80]}"
        for rule in (_INDEFINITE, _DIALECT):
            for match in rule.finditer(text.words):
                around = text.words[max(0, match.start() - 30) : match.end() + 30]
                yield f"{name}:{text.line}: {match[0]}: ...{around}..."


def main(wanted: list[str]) -> None:
    """Print the places of the folders that are named, or of all."""
    found = folders()
    for name in wanted or found:
        for module, source in found[name].items():
            for place in places(module, source):
                print(place)


if __name__ == "__main__":
    main(sys.argv[1:])
