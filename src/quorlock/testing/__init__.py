"""Nodes and servers for tests that use quorlock: memory nodes, real servers, pytest fixtures.

`memory` has nodes in this process, which need no server. `servers` starts real servers in
milliseconds and removes every process and file at the end. `plugin` has the pytest fixtures, which
are available as soon as quorlock is installed. `fake_node` and `fake_commands` implement a memory
node; the simulator in the repository uses them, too.
"""
