"""Another process that continues a lease: it reads a ticket, adopts it and prints the result.

test_hand_over runs it as a script: API URLS-AS-JSON, then the ticket's JSON on stdin.
"""

from __future__ import annotations

import asyncio
import json
import sys

import quorlock
import quorlock.asyncio as aio


def blocking(urls: list[str], ticket: quorlock.Ticket) -> dict[str, object]:
    with quorlock.Redlock(urls, node_timeout=1.0) as redlock:
        lease = redlock.adopt(ticket)
        lease.extend(20)
        facts = {"token": lease.token, "held": lease.held, "ttl": lease.ttl}
        return {**facts, "released": lease.release()}


async def asynchronous(urls: list[str], ticket: quorlock.Ticket) -> dict[str, object]:
    async with aio.Redlock(urls, node_timeout=1.0) as redlock:
        lease = await redlock.adopt(ticket)
        await lease.extend(20)
        facts = {"token": lease.token, "held": lease.held, "ttl": lease.ttl}
        return {**facts, "released": await lease.release()}


def main() -> None:
    face, urls = sys.argv[1], json.loads(sys.argv[2])
    ticket = quorlock.Ticket.from_json(sys.stdin.read())
    facts = (
        blocking(urls, ticket) if face == "blocking" else asyncio.run(asynchronous(urls, ticket))
    )
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
