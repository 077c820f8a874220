"""Drivers, which perform the core's effects: with sockets and poll, or with asyncio."""
