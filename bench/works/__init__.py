"""What is measured, one module a work.

Each has `run(contestant, params, urls) -> dict`, called in a child process of its own
(`bench.one`), and `PLAN`, the cases that the parent goes through (`bench.plan`).
"""
