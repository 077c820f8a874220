"""The works, one module each.

A work has `run(contestant, params, urls) -> dict`, which runs in a child process (`bench.one`), and
`PLAN`, its cases (`bench.plan`).
"""
