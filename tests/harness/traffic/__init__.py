"""Work under locks in separate processes, recorded as it happens.

    settings.py   what one process is to do; travels as JSON
    records.py    the record: one line for each step, which survives kill -9
    faces.py      the blocking and the asyncio API behind one interface
    stay.py       one period of holding a lock
    child.py      a child that is forked while a lock is held
    turns.py      the kinds of work: what a worker does with a lock
    worker.py     the process: threads or tasks that take turns until it has to stop
    processes.py  the processes as their parent sees them

`tests.harness.validate` reads the records and decides whether the run was right, independently of
the library; `tests.servers.scenarios` inflicts faults during it.
"""
