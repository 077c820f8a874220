"""The algorithm as pure flows: generators that yield effects and are sent the results.

This package touches no socket, clock, thread, random source or environment; drivers supply those.
The same flows run over blocking sockets, over asyncio and in the simulator.

Reading order:

    redlock             acquire, extend, release: the algorithm, with the steps of its source
    effects             what a flow asks of its driver, and what comes back
    commands, votes     what is asked of a node; its answer
    rounds, tally       requests to all nodes, and the count of their votes
    results             what an attempt came to, and the facts of leases
    time                instants, drift, validity
    config              the settings, validated
    fence               fencing tokens that a quorum agrees on
    renewal, renewal_schedule             extending many leases; when each is due
    routing             which node gets a command, over which connection
    pending_releases, releases_in_doubt   releases that a node has not confirmed
    restart_guard       the quarantine of restarted nodes
    agreement           the settings that all clients of a set of nodes share

Comments cite rules by number ("rule 3").  The fifteen rules stand at the end of
docs/contributing/how-it-works.md.
"""
