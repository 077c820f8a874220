"""`quorlock bench`: how fast locks are on the user's own nodes, over the user's own network.

    command.py   the options, the progress on stderr, the exit status
    measure.py   the parts of the measurement, in order, and their shares of the time
    window.py    the time in which one part is measured
    threads.py   one caller, and many, in threads
    tasks.py     many callers, and contenders for one resource, in an event loop
    facts.py     the results
    report.py    the results as text and JSON
    plot.py      bars of text

A background thread measures while the main thread waits. So Ctrl-C sets an event, which is checked
between two cycles. It never raises an exception within a cycle, and every lease is released.
"""
