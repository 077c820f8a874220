"""`quorlock doctor`: are these nodes fit for Redlock?

facts.py     what was found out, and nothing of what it means
asker.py     finds it out: the one module here that talks to nodes
findings.py  what a check says, and how the answers of all nodes become its findings
each.py      the checks of one node
together.py  the checks of all nodes together
report.py    the findings as text and as JSON
command.py   the command
"""
