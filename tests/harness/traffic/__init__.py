"""Work under locks, in processes of its own, written down as it happens.

    settings.py   what one process is to do; travels as JSON
    records.py    the record: one line for each step, which survives kill -9
    faces.py      the blocking and the asyncio API behind the same few words
    stay.py       one time of holding a lock
    child.py      one that is forked meanwhile
    turns.py      the kinds of work: what a worker does with a lock
    worker.py     the process: threads or tasks that take turns until told to stop
    crew.py       the processes as their parent sees them

Whether what happened was right is for `tests.harness.validate`, which reads the records and
knows nothing of the library; which faults happen meanwhile is for `tests.servers.scenarios`.
"""
