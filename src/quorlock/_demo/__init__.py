"""The demo: a lock that holds while its nodes fail, and an independent check of that.

    scenario.py   the settings, and the schedule of faults
    run.py        runs servers, workers, faults and display, and prints the verdict
    worker.py     one worker process: adds to the counter, each addition under the lock
    workers.py    the worker processes as their parent sees them
    counter.py    the shared counter, a file that is not atomic
    checker.py    the log of critical sections, and its check
    screen.py     the display

It uses what users have: the blocking API and `quorlock.testing.servers`.
"""
