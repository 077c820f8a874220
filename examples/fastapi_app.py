"""An API that charges invoices. At any time one request works on an invoice, over all servers."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, TypedDict

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse

from quorlock import AcquireTimeout, LeaseLost, NodeError, QuorumUnreachable
from quorlock.asyncio import Redlock


class State(TypedDict):
    redlock: Redlock


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[State]:
    async with Redlock.from_env() as redlock:
        yield {"redlock": redlock}


app = FastAPI(lifespan=lifespan)


async def get_redlock(request: Request) -> Redlock:
    redlock: Redlock = request.state.redlock
    return redlock


RedlockDep = Annotated[Redlock, Depends(get_redlock)]

charged: set[int] = set()  # stands for your database


async def charge(number: int) -> None:
    await asyncio.sleep(0.2)  # stands for your payment provider
    charged.add(number)


@app.post("/invoices/{number}/charge")
async def charge_invoice(number: int, redlock: RedlockDep) -> dict[str, str]:
    async with redlock.lock(f"invoice:{number}", timeout=3.0):
        if number in charged:
            return {"status": "already charged"}
        await charge(number)
    return {"status": "charged"}


@app.exception_handler(AcquireTimeout)
async def busy(_: Request, error: AcquireTimeout) -> JSONResponse:
    headers = {}
    if error.holder_ttl is not None:
        headers["Retry-After"] = str(math.ceil(error.holder_ttl))
    return JSONResponse({"detail": f"{error.resource} is busy"}, 409, headers)


@app.exception_handler(QuorumUnreachable)
@app.exception_handler(NodeError)
async def unavailable(_: Request, error: QuorumUnreachable | NodeError) -> JSONResponse:
    return JSONResponse({"detail": f"{error.resource} cannot be locked"}, 503)


@app.exception_handler(LeaseLost)
async def lost(_: Request, _error: LeaseLost) -> JSONResponse:
    return JSONResponse({"detail": "interrupted: check the invoice before you retry"}, 503)


@app.get("/live")
async def live() -> dict[str, bool]:
    return {"live": True}


@app.get("/ready")
async def ready(redlock: RedlockDep, response: Response) -> dict[str, object]:
    health = await redlock.check()
    if not health.ready:
        response.status_code = 503
    nodes = {node.address: "up" if node.up else node.why for node in health.nodes}
    return {"ready": health.ready, "quorum": health.quorum, "nodes": nodes}
