"""`quorlock top`: the nodes and their locks, live.

facts.py         the facts of one turn
node_probe.py    the state of one node
monitor.py       samples of acquire attempts, by MONITOR
lock_history.py  since when and how often holders have changed
report.py        the facts as lines for people and as JSON
live.py          the turns
command.py       the command
"""
