"""Room for tests that use quorlock, yours as well as ours. Owns nothing itself; the modules do.

For your tests: `memory` (nodes in this process, no server needed), `plugin` (pytest fixtures,
there as soon as quorlock is installed), `servers` (real servers that start in milliseconds and
leave nothing behind).

The simulated world: `sim` runs many from the command line, or shows one. `scenario` says which
there are, `plan` is one as data, `shrink` cuts it down. `world`, `worker` and `process` are a
world on virtual time, a client's work and its driver; `network`, `server` and `node` are
connections, a node's ups and downs and the twin of its commands; `clock` and `faults` are what
clocks do and what goes wrong. `history` is what happened, `checker` judges it; `trace`, `diagram`
and `page` show it as JSON lines, as text and in a browser. `explore` goes through every order of
events in a small world.
"""
