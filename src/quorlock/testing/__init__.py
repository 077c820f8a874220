"""Room for tests that use quorlock, yours as well as ours. Owns nothing itself: take what you
need from its modules, such as `quorlock.testing.servers` for real servers that start in
milliseconds and leave nothing behind.
"""
