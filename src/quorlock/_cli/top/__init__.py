"""`quorlock top`: the nodes and their locks, live.

facts.py         the facts of one turn, and since when and how often holders have changed
node_probe.py    the state of one node
monitor.py       samples of acquire attempts, by MONITOR
report.py        the facts as lines for people and as JSON
live.py          the turns
command.py       the command
"""
