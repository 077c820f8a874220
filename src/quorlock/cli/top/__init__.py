"""`quorlock top`: what goes on at the nodes, live.

facts.py     what was seen, and nothing of how it is shown
scout.py     asks one node how it is
tries.py     samples who tries to acquire, by MONITOR
seen.py      what was seen of the locks since we look
report.py    the facts as lines for people and as JSON
live.py      takes the turns
command.py   the command
"""
