"""What a run is made of, and the runs: traffic and faults at once, then the judge.

stage.py              nodes, traffic, a nemesis that inflicts faults, and the verdict
keepers.py            who keeps a renewed lease meanwhile, and who wants it
test_safety.py        a minority is faulted at any time: nobody meets, work goes on
test_availability.py  a majority is away: calls end in time, say why, and work comes back
test_clients.py       the client itself is paused, killed, forked
test_renewal.py       renewed leases: they live through a minority's faults, and are lost in time
test_limits.py        what goes wrong beyond the assumptions: shown, not only said
"""
