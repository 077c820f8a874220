"""What the blocking and the asyncio API have in common: everything that does not wait."""
