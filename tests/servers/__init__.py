"""quorlock on real servers: traffic under faults, and an independent validation of the results."""
