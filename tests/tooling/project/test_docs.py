"""tools.snippets, which `make check` runs over the documentation, finds what is not true in it."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from tools import snippets

if TYPE_CHECKING:
    from quorlock.testing.servers import Servers


def check(folder: Path, page: str, nodes: Servers) -> list[str]:
    (folder / "Makefile").write_text("demo: ready\n\techo\n")
    (folder / "examples").mkdir()
    (folder / "examples" / "here.py").write_text("x = 1\n\n\nraise AssertionError\n")
    (folder / "other.md").write_text("# A Page: with `code`\n")
    path = folder / "page.md"
    path.write_text(dedent(page).strip() + "\n")
    return snippets.problems([path], nodes, folder)


SOUND = {
    "a block that makes its own, at made-up addresses": """
        ```python
        from quorlock import Redlock

        nodes = ["redis://a:6379", "redis://b:6379", "redis://c:6379"]
        with Redlock(nodes) as mine, mine.lock("x") as lease:
            assert lease.held
        ```
        """,
    "a block that finds redlock and urls": """
        ```python
        assert len(urls) == 5
        assert redlock.lock("x").try_acquire().release()
        ```
        """,
    "a block that awaits": """
        ```python
        async with redlock.lock("x") as lease:
            assert lease.held
        ```
        """,
    "a block with something given": """
        <!-- given:
        def charge(fence): assert fence == 1
        -->
        ```python
        charge(1)
        ```
        """,
    "a block that goes on, in a list": """
        ```python
        x = 1
        ```

        - so:

          <!-- continues -->
          ```python
          assert x == 1
          ```
        """,
    "a block that only compiles": """
        <!-- no-run: needs three machines -->
        ```python
        import nothing_of_this_name
        ```
        """,
    "a file, and some of its lines": """
        ```python title="examples/here.py"
        x = 1


        raise AssertionError
        ```

        ```python title="examples/here.py"
        raise AssertionError
        ```
        """,
    "commands and links": """
        [page](other.md#a-page-with-code), [here](#above), [out](https://example.org/x)
        # Above
        ```console
        $ make demo ARGS=--no-lock
        anything printed
        ```
        ```
        $ make nothing, [nowhere](nowhere.md)
        ```
        """,
}


@pytest.mark.parametrize("page", SOUND)
def test_nothing_is_found_in(page: str, nodes: Servers, tmp_path: Path) -> None:
    assert check(tmp_path, SOUND[page], nodes) == []


BROKEN = {
    "a block that fails": ("```python\n\nassert 1 == 2\n```", "line 3", "AssertionError"),
    "a block that is no Python": ("```python\nx = = 1\n```", "page.md:2", "invalid syntax"),
    "a block that is left out for no reason": (
        "<!-- no-run: -->\n```python\nx = 1\n```",
        "page.md:3",
        "without a reason",
    ),
    "a file with other lines": (
        '```python title="examples/here.py"\nx = 12\n```',
        "page.md:2",
        "examples/here.py has other lines",
    ),
    "half of a line of a file": (
        '```python title="examples/here.py"\nraise Assertion\n```',
        "page.md:2",
        "examples/here.py has other lines",
    ),
    "a file that is not there": (
        '```python title="examples/y.py"\nx = 1\n```',
        "page.md:2",
        "there is no examples/y.py",
    ),
    "a command that make does not know": (
        "```console\n$ make tea\n```",
        "page.md:2",
        "no target tea",
    ),
    "a script that is not there": (
        "```console\n$ python examples/x.py\n```",
        "page.md:2",
        "there is no examples/x.py",
    ),
    "a subcommand that quorlock does not know": (
        "```console\n$ python -m quorlock tea\n```",
        "page.md:2",
        "does not mention tea",
    ),
    "a command that quorlock does not know": (
        "```console\n$ quorlock tea\n```",
        "page.md:2",
        "does not mention tea",
    ),
    "an option that quorlock does not know": (
        "```console\n$ quorlock status tea --hot -- --cold\n```",
        "page.md:2",
        "quorlock status does not mention --hot",
    ),
    "a link to no file": ("see [this](nowhere.md)", "page.md:1", "there is no nowhere.md"),
    "a link to no heading": ("see [this](other.md#b)", "page.md:1", "no heading #b"),
}


@pytest.mark.parametrize("page", BROKEN)
def test_the_check_catches(page: str, nodes: Servers, tmp_path: Path) -> None:
    source, *named = BROKEN[page]
    found = check(tmp_path, source, nodes)
    assert len(found) == 1, found
    for word in named:
        assert word in found[0]


def test_the_migration_page_says_which_libraries_exclude_ours() -> None:
    """A user may run both at the same time: without that, each lock would be held twice."""
    page = (snippets.ROOT / "docs/migration/README.md").read_text()
    sections = page.split("\n## ")[1:]
    assert [it.partition("\n")[0] for it in sections if "exclude each other" not in it] == []
