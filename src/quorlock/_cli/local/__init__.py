"""`quorlock local`: the user's own nodes on this machine.

command.py   up, down, status
nodes.py     the user's one set: its folder, its lock, and the guard against restarts
server.py    one node's process
"""
