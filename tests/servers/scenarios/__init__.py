"""Runs on real servers: traffic and faults at once, then the judgement.

scenario.py           nodes, traffic, a nemesis that inflicts faults, and the verdict
holders.py            holders of renewed leases, and clients that contend for them
test_safety.py        a minority is faulted at any time: no overlap, work continues
test_availability.py  a majority is away: calls end in time with the reason, and work resumes
test_clients.py       the client itself is paused, killed, forked
test_renewal.py       renewed leases: they live through a minority's faults, and are lost in time
test_limits.py        failures beyond the assumptions of Redlock, shown by tests
"""
