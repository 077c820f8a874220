"""`quorlock doctor`: checks whether these nodes are fit for Redlock.

facts.py         the facts that were found
probe.py         finds them: the only module here that talks to nodes
findings.py      the results of checks, and how those of all nodes become findings
node_checks.py   the checks of one node
fleet_checks.py  the checks of all nodes together
report.py        the findings as text and as JSON
command.py       the command
"""
