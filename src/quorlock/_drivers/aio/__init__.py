"""The asyncio driver: one connection to each node for all tasks of an event loop."""
