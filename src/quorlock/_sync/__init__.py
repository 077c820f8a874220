"""The blocking face: the verbs of redlock, lock and lease, each a line over a flow."""
