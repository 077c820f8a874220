"""`quorlock local`: nodes of one's own on this machine.

command.py   up, down, status
nodes.py     the one set that a user has: where it is, who may change it, what may be believed of it
server.py    one node's process
"""
