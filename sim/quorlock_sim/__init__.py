"""The simulator of quorlock: worlds on virtual time, decided by a seed, that run the shipped code.

`__main__` is the command line, `runner` runs worlds, one or many. `scenarios` makes plans from
seeds, `plan` is one as data, `shrink` minimises it. `world` has the events, `workload` the jobs of
a client, `client` its driver. `network` has the connections, `server` the processes of a node, and
`quorlock.testing.fake_node` its commands. `clock` and `faults` have the clocks and the faults.
`history` records a world, `oracle` judges it. `trace` writes it as JSON lines, `view` draws it as
text and as a page for a browser. `directed` has orders of events written by hand, in
the small worlds of `choices`.
"""
