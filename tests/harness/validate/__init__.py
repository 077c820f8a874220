"""Judges what the traffic did, from its records and the nodes' own data alone.

    history.py   reads the records: stays, calls, processes
    judge.py     what is wrong with a history
    nodes.py     what the nodes still have, asked in plain RESP over a separate socket

Independent of what it judges: imports nothing of quorlock nor of the traffic (a test holds that).
"""
