"""Performs the core's effects in one world each: sockets and poll, or asyncio."""
