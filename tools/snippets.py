"""Check the documentation by running it: `python -m tools.snippets` takes *.md and docs/**/*.md.

Every ```python block runs in a separate process against five real local servers:

- the addresses `redis://a:6379` … `redis://e:6379` stand for those servers, so that examples look
  like users' code;
- `urls` (the five) and `redlock` (a Redlock over them; the asyncio one in a block that awaits at
  its top level) are predefined;
- the servers are empty when a block begins, and the working directory is temporary.

A comment on the lines before a block changes this:

    <!-- given: charge = print -->        Python to run before the block (several lines will do)
    <!-- continues -->                    the block continues the one before it
    <!-- no-run: why it cannot run -->    the block is only compiled

A block with `title="examples/x.py"` is not run: it is that file or some of its lines, and a test
in tests/tooling/examples/ runs the file.

In ```console blocks `$ make x` must be a target, `$ python -m quorlock x --y` (or `$ quorlock x
--y`) a command with that option, and `$ python path.py` a file. Relative links must lead to a file,
and to a heading in it. `python -m tools.snippets FILE...` checks only those files.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import CodeType

    from quorlock.testing.servers import Servers

ROOT = Path(__file__).parents[1]

BLOCK_TIMEOUT = 60  # seconds
TOP_LEVEL_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT

FENCE = re.compile(
    r'^(?P<indent> *)(?P<marks>```+)(?P<language>\w*)(?: title="(?P<title>[^"\n]+)")?[^\n]*$'
)
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")  # its text may begin on the line before
ADDRESS = re.compile(r"redis://(?P<node>[a-e])(?::6379)?(?:/0)?(?![\w.:/])")


@dataclass(frozen=True)
class Block:
    """One fenced block: where it is, and what the comments before it change."""

    path: str
    line: int
    language: str
    source: str
    given: str = ""
    no_run: str | None = None
    continues: bool = False
    title: str = ""

    @property
    def where(self) -> str:
        """The place as `file:line`."""
        return f"{self.path}:{self.line}"


def documents(root: Path = ROOT) -> list[Path]:
    """Return the pages to check."""
    return [*sorted(root.glob("*.md")), *sorted(root.glob("docs/**/*.md"))]


def problems(paths: Sequence[Path], servers: Servers, root: Path = ROOT) -> list[str]:
    """Return all errors in these files, as `file:line: error`."""
    found: list[str] = []
    for path in paths:
        blocks = list(read_blocks(path))
        excerpts = [b for b in blocks if b.title.startswith("examples/")]
        found += python_problems(
            [b for b in blocks if b.language == "python" and b not in excerpts], servers
        )
        for block in excerpts:
            found += excerpt_problems(block, root)
        for block in blocks:
            if block.language == "console":
                found += console_problems(block, root)
        found += link_problems(path)
    return found


# --- reading ---------------------------------------------------------------------------------


def read_blocks(path: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a file, in order."""
    lines = path.read_text().splitlines()
    number = 0
    while number < len(lines):
        opening = FENCE.match(lines[number])
        if opening is None:
            number += 1
            continue
        first = number + 1
        number = next(
            (n for n in range(first, len(lines)) if lines[n].strip() == opening["marks"]),
            len(lines),
        )
        # A block inside a list has the indentation of the list.
        body = [line.removeprefix(opening["indent"]) for line in lines[first:number]]
        before = "\n".join(lines[: first - 1])
        language, title = opening["language"], opening["title"] or ""
        source = "\n".join(body)
        yield Block(str(path), first + 1, language, source, title=title, **wishes(before))
        number += 1


def wishes(before: str) -> dict[str, Any]:
    """Return the options in the comments right before a block."""
    options: dict[str, Any] = {}
    before = before.rstrip()
    while before.endswith("-->"):
        before, _, comment = before.removesuffix("-->").rpartition("<!--")
        word, _, text = comment.strip().partition(":")
        if word == "continues":
            options["continues"] = True
        elif word in ("given", "no-run"):
            options[word.replace("-", "_")] = text.strip()
        before = before.rstrip()
    return options


# --- python ----------------------------------------------------------------------------------


def python_problems(blocks: Sequence[Block], servers: Servers) -> Iterator[str]:
    """Yield the errors of the ```python blocks of one file."""
    chain: list[Block] = []
    for block in blocks:
        chain = [*chain, block] if block.continues else [block]
        if block.no_run == "":
            yield f"{block.where}: no-run without a reason"
        try:
            awaits(block)
        except SyntaxError as error:
            yield f"{block.path}:{error.lineno}: {error.msg}"
        else:
            if block.no_run is None and (failure := run_in_child(chain, servers)):
                yield f"{block.where}: {failure}"


def compiled(block: Block) -> CodeType:
    """Compile a block; line numbers are those of its file."""
    padded = "\n" * (block.line - 1) + block.source
    code: CodeType = compile(padded, block.path, "exec", TOP_LEVEL_AWAIT)
    return code


def awaits(block: Block) -> bool:
    """Return whether the block awaits at its top level."""
    return bool(compiled(block).co_flags & inspect.CO_COROUTINE)


def run_in_child(chain: Sequence[Block], servers: Servers) -> str | None:
    """Run blocks that belong together in a new process; return the error, or None."""
    for server in servers:
        server.flush()
    order = json.dumps(
        {"urls": servers.urls, "chain": [asdict(block) for block in chain]}, default=str
    )
    command = [sys.executable, __file__, "--child"]
    with tempfile.TemporaryDirectory() as folder:
        try:
            child = subprocess.run(
                command,
                input=order,
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=BLOCK_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"not finished after {BLOCK_TIMEOUT} s"
    return child.stderr.strip() or f"exit status {child.returncode}" if child.returncode else None


def child_main() -> None:
    """Run the blocks from stdin in sequence, in one namespace; the child process calls this."""
    sys.path.append(str(ROOT / "sim"))  # docs/contributing/simulation.md imports the simulator
    order = json.load(sys.stdin)
    urls: list[str] = order["urls"]
    chain = [Block(**block) for block in order["chain"]]
    for number, block in enumerate(chain):
        source = ADDRESS.sub(lambda found: urls["abcde".index(found["node"])], block.source)
        chain[number] = replace(block, source=source)
    if any(awaits(block) for block in chain):
        asyncio.run(run_awaiting(chain, urls))
    else:
        run_blocking(chain, urls)


def run_blocking(chain: Sequence[Block], urls: list[str]) -> None:
    """Run blocks that do not await."""
    from quorlock import Redlock

    with Redlock(urls) as redlock:
        namespace = {"__name__": "__main__", "urls": urls, "redlock": redlock}
        for block in chain:
            exec(block.given, namespace)
            exec(compiled(block), namespace)


async def run_awaiting(chain: Sequence[Block], urls: list[str]) -> None:
    """Run blocks of which at least one awaits."""
    from quorlock.asyncio import Redlock

    async with Redlock(urls) as redlock:
        namespace = {"__name__": "__main__", "urls": urls, "redlock": redlock}
        for block in chain:
            exec(block.given, namespace)
            # The value of a block that awaits is a coroutine.
            begun = eval(compiled(block), namespace)
            if begun is not None:
                await begun


# --- examples --------------------------------------------------------------------------------


def excerpt_problems(block: Block, root: Path) -> Iterator[str]:
    """Yield the error of a block that is not the lines of the file in its title."""
    file = root / block.title
    if not file.is_file():
        yield f"{block.where}: there is no {block.title}"
    elif f"\n{block.source}\n" not in f"\n{file.read_text()}":
        yield f"{block.where}: {block.title} has other lines"


# --- console ---------------------------------------------------------------------------------


def console_problems(block: Block, root: Path) -> Iterator[str]:
    """Yield the errors in the commands of a ```console block."""
    for number, line in enumerate(block.source.splitlines(), block.line):
        if line.startswith("$ "):
            words = [w for w in shlex.split(line[2:], comments=True) if not re.match(r"\w+=", w)]
            for wrong in command_problems(words, root):
                yield f"{block.path}:{number}: {wrong}"


def command_problems(words: Sequence[str], root: Path) -> Iterator[str]:
    """Yield the errors of one command; unknown programs are accepted."""
    match words:
        case ["make", *names]:
            known = make_targets(root)
            yield from (f"make has no target {n}" for n in names if n[0] != "-" and n not in known)
        case ["python", "-m", "quorlock", *rest]:
            names = [word for word in rest if not word.startswith("-")][:1]
            text = help_text(*names)
            yield from (
                f"python -m quorlock {' '.join(names)} does not mention {word}"
                for word in dict.fromkeys(rest)
                if word.partition("=")[0] not in text
            )
        case ["quorlock", *rest]:
            names = [word for word in rest if not word.startswith("-")][:1]
            text = help_text(*names)
            ours = rest[: rest.index("--")] if "--" in rest else rest
            yield from (
                f"quorlock {' '.join(names)} does not mention {word}"
                for word in dict.fromkeys([*names, *(word for word in ours if word[0] == "-")])
                if word.partition("=")[0] not in text
            )
        case ["python", script, *_] if script.endswith(".py") and not (root / script).exists():
            yield f"there is no {script}"
        case _:
            pass


@cache
def make_targets(root: Path) -> frozenset[str]:
    """Return the targets of the Makefile."""
    return frozenset(re.findall(r"^([\w-]+):", (root / "Makefile").read_text(), re.MULTILINE))


@cache
def help_text(*names: str) -> str:
    """Return the output of a command's --help, or "" if there is no such command."""
    command = [sys.executable, "-m", "quorlock", *names, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode else done.stdout


# --- links -----------------------------------------------------------------------------------


def link_problems(path: Path) -> Iterator[str]:
    """Yield the broken relative links of a file."""
    for number, line in prose(path):
        for found in LINK.finditer(re.sub(r"`[^`]*`", "", line)):
            name, _, anchor = found["target"].partition("#")
            if re.match(r"\w+:", name):
                continue
            target = path.parent / name if name else path
            if not target.exists():
                yield f"{path}:{number}: there is no {name}"
            elif anchor and anchor not in headings(target):
                yield f"{path}:{number}: {name or 'this page'} has no heading #{anchor}"


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file outside its blocks, with their numbers."""
    fenced: str | None = None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        fence = FENCE.match(line)
        if fenced is not None:
            fenced = None if line.strip() == fenced else fenced
        elif fence:
            fenced = fence["marks"]
        else:
            yield number, line


def headings(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = [line.lstrip("#").strip() for _, line in prose(path) if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def main(arguments: Sequence[str]) -> int:
    """Check the named files, or all; print the errors and return the exit status."""
    from quorlock.testing.servers import Servers

    paths = [Path(argument) for argument in arguments] or documents()
    with Servers(5) as servers:
        found = problems(paths, servers)
    print(*found, sep="\n", end="\n" if found else "")
    print(f"docs: {len(paths)} pages, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--child"]:
        child_main()
    else:
        sys.exit(main(sys.argv[1:]))
