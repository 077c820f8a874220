"""The algorithm, pure: it asks for effects and is told what came back.

No socket, no clock, no thread, no chance, no environment in here; drivers bring those.
The same flows run over sockets, over asyncio and in a simulated world.
"""
