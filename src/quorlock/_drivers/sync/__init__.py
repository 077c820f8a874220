"""The blocking driver: connection sets, each borrowed by one thread at a time."""
