"""`quorlock run`: a command under the lock.

command.py   the options, and what they come to
turn.py      acquire, start the command, watch over it, release
child.py     the command as `run` sees it, by way of the guard
guard.py     the process between the two, which ends the command in time (decision 0019)
family.py    the command and what it has started, as far as signals reach
channel.py   what run and guard say to each other
signals.py   those that are passed on
voice.py     what is said, on stderr
"""
