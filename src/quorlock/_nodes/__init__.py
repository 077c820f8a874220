"""Names of nodes: URLs, settings, and the clients of redis-py and valkey-py."""
