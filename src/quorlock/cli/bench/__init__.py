"""`quorlock bench`: how fast locks are on the user's own nodes, over the user's own network.

    command.py   the options, what is said on stderr, how it ends
    measure.py   what is measured, one part after the other, and how the time is shared out
    threads.py   one caller, and many, in threads
    tasks.py     many callers, and contenders for one resource, in an event loop
    facts.py     what was measured
    report.py    it, for people and for programs
    plot.py      bars of text

All of it is measured off the main thread, which waits: so Ctrl-C is a wish that is looked at
between two cycles, never an exception in the middle of one, and every lease is given back.
"""
