"""quorlock on real servers: traffic under faults, and an independent judge of what happened."""
