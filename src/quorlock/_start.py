"""Ctrl-C while the command line is being loaded: it ends silently, by the signal.

`python -m quorlock` and the script `quorlock` import the package before any other line of theirs
runs, and this before the rest of it. A traceback of modules being loaded helps no user.
Other programs keep their handler.
"""

import sys


def end_by_ctrl_c() -> None:
    """Let Ctrl-C end this process, until a command handles signals itself."""
    import signal  # which no other program needs here

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _is_the_command_line() -> bool:
    arguments: list[str] = getattr(sys, "argv", [])  # a program that embeds Python may have none
    if arguments[:1] == ["-m"]:  # Python is looking for the module, whose name is the next word
        return sys.orig_argv[-len(arguments) :][:1] in (["quorlock"], ["-mquorlock"])
    return bool(arguments) and arguments[0].rpartition("/")[2] == "quorlock"


if _is_the_command_line():
    end_by_ctrl_c()
