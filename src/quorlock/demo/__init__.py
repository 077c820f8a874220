"""The demo: a lock that holds while its nodes fail, and a witness who does not take its word.

    scenario.py   what happens when: the settings, and which node fails at which second
    run.py        brings it on the stage: servers, workers, faults, screen, judgement
    worker.py     one worker process: adds to the counter, each addition under the lock
    crew.py       the worker processes as their parent sees them
    counter.py    the shared counter, a file that is not atomic
    witness.py    the log of who was inside and when, and the judge who reads it
    screen.py     what one sees

It uses what users have: the blocking API and `quorlock.testing.servers`.
"""
