"""`quorlock run`: a command under the lock.

command.py       the options
parsing.py       the end of the options: the first word of the command
session.py       acquire, start the command, watch it, release
child.py         the command as `run` sees it, by way of the guard
guard.py         the process between the two, which ends the command in time (decision 0019)
process_tree.py  the command and its descendants, as far as signals reach
channel.py       messages between `run` and the guard
signals.py       the signals that are forwarded
reporter.py      the messages on stderr
waiting.py       for whom `run` waits, in these messages
"""
