# ruff: noqa: PT012 (how errors leave a block is what is tested)
"""Acceptance 8: the body's exception always comes out; what the release has to say is a note."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

import quorlock.asyncio as aio
from quorlock import LeaseLost, QuorlockError
from quorlock.testing.servers import Servers
from tests.harness.support.wait import until_async
from tests.servers.api.faces import Face, holders, raises, real, steal, until_over, wipe

SETTINGS: dict[str, Any] = {
    "node_timeout": 0.05,
    "connect_timeout": 0.2,
    "retry_delay": (0.002, 0.01),
}


class Mine(Exception):
    """An exception of the body."""


class MineToo(BaseException):
    """An exception of the body that is not an Exception, like KeyboardInterrupt and SystemExit."""


@dataclass
class Scene:
    """The objects that a body can use."""

    face: Face
    nodes: Servers
    redlock: aio.Redlock
    lease: aio.Lease


async def nothing(scene: Scene) -> None:
    """All is well."""


async def released(scene: Scene) -> None:
    assert await scene.lease.release() is True


async def handed_over(scene: Scene) -> None:
    await scene.lease.hand_over()


async def run_out(scene: Scene) -> None:
    await until_over(scene.lease)


async def run_out_and_released(scene: Scene) -> None:
    await until_over(scene.lease)
    # The keys outlive the validity by the drift.
    assert await until_async(lambda: not any(holders(scene.nodes, "a")))
    assert await scene.lease.release() is False


async def vanished(scene: Scene) -> None:
    wipe(scene.nodes, "a")


async def stolen(scene: Scene) -> None:
    wipe(scene.nodes, "a")
    steal(scene.nodes, "a")


async def stolen_and_seen(scene: Scene) -> None:
    await stolen(scene)
    await raises(LeaseLost, scene.lease.extend())


async def all_dead(scene: Scene) -> None:
    for node in scene.nodes:
        node.kill()


async def most_dead(scene: Scene) -> None:
    for node in scene.nodes[:3]:
        node.kill()


async def all_hung(scene: Scene) -> None:
    for node in scene.nodes:
        node.stop()


async def all_dead_and_run_out(scene: Scene) -> None:
    await all_dead(scene)
    await until_over(scene.lease)


async def closed(scene: Scene) -> None:
    await scene.redlock.close()


async def closed_and_dead(scene: Scene) -> None:
    await all_dead(scene)
    await scene.redlock.close()


Happening = Callable[[Scene], Awaitable[None]]

# Actions in the body, and whether the end of a clean block must report a loss.
HAPPENINGS: dict[Happening, bool] = {
    nothing: False,
    released: False,
    handed_over: False,
    run_out: True,
    run_out_and_released: False,
    vanished: True,
    stolen: True,
    stolen_and_seen: True,
    all_dead: False,
    most_dead: False,
    all_hung: False,
    all_dead_and_run_out: True,
    closed: False,
    closed_and_dead: False,
}

BY_NAME = {happening.__name__: happening for happening in HAPPENINGS}


def short(happening: str) -> bool:
    """Is the end of the ttl waited for?"""
    return "run_out" in happening


async def run(
    face: Face, nodes: Servers, happening: str, error: BaseException | None, **lock: Any
) -> tuple[Scene, BaseException | None]:
    """A block in which that happens and that is raised; what comes out of it."""
    redlock = face.redlock(nodes.urls, **SETTINGS)
    scene: Scene | None = None
    out: BaseException | None = None
    try:
        async with redlock.lock("a", ttl=0.25 if short(happening) else 20, **lock) as lease:
            scene = Scene(face, nodes, redlock, lease)
            await BY_NAME[happening](scene)
            if error is not None:
                raise error
    except BaseException as raised:  # noqa: BLE001 (looked at by the test)
        out = raised
    finally:
        await redlock.close()
    assert scene is not None, out
    return scene, out


def flag(face: Face) -> dict[str, Any]:
    return {"on_lost": "flag"} if face.name == "asyncio" else {}


# One kind of exception is enough for all that can happen; the other kinds where the release has
# something to say, and one of them where it has not.
COMBINATIONS = [
    *((happening, Mine) for happening in BY_NAME),
    *(("stolen", error) for error in (MineToo, KeyboardInterrupt, SystemExit, StopIteration)),
    *((happening, KeyboardInterrupt) for happening in ("all_dead", "closed", "run_out")),
]


@pytest.mark.parametrize(("happening", "error"), COMBINATIONS)
async def test_the_bodys_exception_comes_out(
    face: Face, mortal_nodes: Servers, happening: str, error: type[BaseException]
) -> None:
    """The very object, its cause and context untouched; a loss is a note on it, and is no error
    where the lease was not lost.
    """
    mine = error("mine")
    mine.__cause__ = cause = ValueError("why")
    scene, out = await run(face, mortal_nodes, happening, mine, **flag(face))
    assert out is mine
    assert out.__cause__ is cause
    assert out.__context__ is None
    notes = getattr(out, "__notes__", [])
    if HAPPENINGS[BY_NAME[happening]]:
        assert len(notes) == 1
        assert "quorlock: lease on 'a' is lost" in notes[0]
        assert scene.lease.token not in notes[0]
    else:
        assert notes == []
    assert not scene.lease.held


@pytest.mark.parametrize("happening", BY_NAME)
async def test_a_clean_block_reports_a_loss_and_nothing_else(
    face: Face, mortal_nodes: Servers, happening: str
) -> None:
    """LeaseLost if the lease was lost in the body; no error if it was given up, or if the loss is
    unknown (all nodes dead, but valid to the end).
    """
    scene, out = await run(face, mortal_nodes, happening, None, **flag(face))
    if HAPPENINGS[BY_NAME[happening]]:
        assert isinstance(out, LeaseLost)
        assert out.lease is real(scene.lease)
    else:
        assert out is None
    assert not scene.lease.held


@pytest.mark.parametrize("happening", [h for h in BY_NAME if "dead" not in h])
async def test_a_lease_lost_of_the_bodys_own_is_not_doubled(
    face: Face, mortal_nodes: Servers, happening: str
) -> None:
    """The body raised LeaseLost itself (ensure, extend): that very one comes out, without notes."""
    mine = LeaseLost("a", "expired")
    _, out = await run(face, mortal_nodes, happening, mine, **flag(face))
    assert out is mine
    assert getattr(out, "__notes__", []) == []


async def test_a_lease_lost_of_another_resource_gets_its_note(face: Face, nodes: Servers) -> None:
    """Another lock's LeaseLost comes out of a block whose own lease was lost too."""
    mine = LeaseLost("another", "expired")
    _, out = await run(face, nodes, "stolen", mine, **flag(face))
    assert out is mine


@pytest.mark.parametrize("happening", ["run_out", "all_dead_and_run_out"])
async def test_asyncios_cancelled_body_may_raise_its_own(
    mortal_nodes: Servers, happening: str
) -> None:
    """on_lost="cancel": an error that the body makes of its cancellation comes out, with a note."""
    async with aio.Redlock(mortal_nodes.urls, **SETTINGS) as redlock:
        mine = Mine("mine")
        with pytest.raises(Mine) as out:
            async with redlock.lock("a", ttl=0.2):
                if "dead" in happening:
                    for node in mortal_nodes:
                        node.kill()
                try:
                    await asyncio.sleep(30)
                finally:
                    raise mine
        assert out.value is mine
        assert len(mine.__notes__) == 1
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0


async def test_a_cancelled_body_releases_on_its_way_out(nodes: Servers) -> None:
    """asyncio: the cancellation comes out, not an error of the release, and the keys are gone."""
    async with aio.Redlock(nodes.urls, **SETTINGS) as redlock:
        inside = asyncio.Event()

        async def work() -> None:
            async with redlock.lock("a", ttl=20):
                inside.set()
                await asyncio.sleep(30)

        task = asyncio.create_task(work())
        await inside.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert await until_async(lambda: not any(node.keys() for node in nodes))


async def test_a_redlocks_block_lets_errors_out_and_closes(face: Face, nodes: Servers) -> None:
    """`with Redlock(...)`: the body's error propagates, leases are released, everything is
    closed.
    """
    with pytest.raises(Mine):
        async with face.redlock(nodes.urls) as redlock:
            lease = await redlock.lock("a").acquire()
            raise Mine
    assert not lease.held
    assert not any(node.keys() for node in nodes)
    await raises(QuorlockError, redlock.lock("a").acquire())


async def test_close_deletes_the_keys_of_thousands_of_leases(face: Face, nodes: Servers) -> None:
    """The nodes need longer for them than a node that hangs is waited for."""
    async with face.redlock(nodes.urls[:3], ttl=30.0) as redlock:
        for number in range(3_000):
            await redlock.lock(str(number)).acquire()
    assert await until_async(lambda: not any(node.keys() for node in nodes))
