"""The faults of a simulated world: one small function for each kind.

A fault that lasts ends after its duration, or when everything is healed.  Its function returns
False if there was nothing to hit.  `scenarios` draws the faults of a world.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from quorlock.testing.fake_node import is_side_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock_sim.client import Process
    from quorlock_sim.network import Link
    from quorlock_sim.plan import Fault
    from quorlock_sim.server import SimServer
    from quorlock_sim.world import World

    Strike = Callable[[World, Fault], bool]


def strike(world: World, fault: Fault) -> bool:
    """Inject a fault; return False if there was nothing to hit."""
    if world.in_recovery:
        return False
    if fault.client >= 0 and world.processes[fault.client].dead:
        return False
    return KINDS[fault.kind](world, fault)


def heal(world: World) -> None:
    """End all faults that still last."""
    for server in world.servers:
        _mend_server(world, server)
    for process in world.processes:
        if not process.dead:
            _mend_process(world, process)


def _mend_server(world: World, server: SimServer) -> None:
    if not server.up:
        _restart(world, (server, server.epoch, server.memory))
    server.slow_by = 0
    server.mute = server.loses_calls = False
    server.calls_late_by = 0
    server.node.read_only = server.node.full = False
    if server.hung:
        server.go_on()
    if server.wall.pace == 0:
        server.wall.run_at(1_000_000, world.now)
        world.tell("drift", node=server.index, pace=1_000_000)


def _mend_process(world: World, process: Process) -> None:
    process.stall = 0
    process.vanishes = False
    if process.elapsed.pace == 0:
        process.elapsed.run_at(1_000_000, world.now)
        world.tell("drift", client=process.index, pace=1_000_000)
    for index in range(process.policy.n):
        _reach(process, index)
    for link in _links(process):
        link.duplicate_after = 0
        if link.swallows_requests or link.swallows_replies:
            process.loses(link)
    if process.paused:
        process.go_on()


# --- clients ---------------------------------------------------------------------------------


def _pause(world: World, fault: Fault) -> bool:
    """Pause a client: garbage collection, SIGSTOP, migration of a virtual machine."""
    process = world.processes[fault.client]
    if process.paused:
        return False
    process.stop()
    world.tell("pause", client=fault.client, lasts=fault.lasts)
    world.schedule(world.now + fault.lasts, _resume, process)
    return True


def _resume(process: Process) -> None:
    if process.paused and not process.dead:
        process.world.tell("resume", client=process.index)
        process.go_on()


def _stall(world: World, fault: Fault) -> bool:
    """Pause a client during its next send to all nodes, before node `fault.node`."""
    process = world.processes[fault.client]
    process.stall, process.stalls_at = fault.lasts, fault.node
    world.tell("stall", client=fault.client, node=fault.node, lasts=fault.lasts)
    return True


def _client_crash(world: World, fault: Fault) -> bool:
    """Kill a client; `amount` per mille of its requests in flight still arrive."""
    world.tell("client_crash", client=fault.client)
    world.crash(fault.client, fault.amount, fault.lasts)
    return True


def _cancel(world: World, fault: Fault) -> bool:
    """Cancel the client's call."""
    if world.processes[fault.client].paused:
        return False  # a paused process cannot cancel either
    cancelled = world.cancel(fault.client, fault.amount)
    if cancelled:
        world.tell("cancel", client=fault.client)
    return cancelled


def _vanish(world: World, fault: Fault) -> bool:
    """Cancel the client's caller at the very instant at which its next lock is won."""
    world.processes[fault.client].vanishes = True
    world.tell("vanish", client=fault.client)
    return True


def _client_step(world: World, fault: Fault) -> bool:
    """Step the client's monotonic clock by `amount` ns, against the assumptions."""
    world.processes[fault.client].elapsed.step(fault.amount, world.now)
    world.tell("step", client=fault.client, by=fault.amount)
    return True


def _client_wall_step(world: World, fault: Fault) -> bool:
    """Step the client's wall clock by `amount` ns, which must have no effect."""
    world.processes[fault.client].wall.step(fault.amount, world.now)
    world.tell("wall_step", client=fault.client, by=fault.amount)
    return True


def _client_drift(world: World, fault: Fault) -> bool:
    """Run the client's monotonic clock at `amount` parts per million from now on."""
    world.processes[fault.client].elapsed.run_at(fault.amount, world.now)
    world.tell("drift", client=fault.client, pace=fault.amount)
    return True


# --- nodes -----------------------------------------------------------------------------------


def _crash(how: str) -> Strike:
    def crash(world: World, fault: Fault) -> bool:
        server = world.servers[fault.node]
        if not server.up:
            return False
        server.crash(how)
        world.tell("crash", node=fault.node, memory=how, lasts=fault.lasts)
        for link in _all_links(world, fault.node):
            # The kernel closes the sockets of the dead process: replies that were sent arrive.
            at = max(world.now + world.network_profile.delay(link.rng), link.replies_until)
            world.schedule(at, _hang_up, link)
        world.schedule(
            world.now + fault.lasts, lambda _: _restart(world, _), (server, server.epoch, how)
        )
        return True

    return crash


def _hang_up(link: Link) -> None:
    if not link.process.paused:
        link.process.loses(link)
    else:
        link.process.later(0, _hang_up, link)


def _restart(world: World, life: tuple[SimServer, int, str]) -> None:
    server, epoch, how = life
    if server.up or server.epoch != epoch:
        return
    before = dict(server.node.keys)
    server.restart(how)
    world.tell("restart", node=server.index, memory=how)
    world.forgot(server, before, f"restart ({how})")


def _save(world: World, fault: Fault) -> bool:
    """Save the node's keys to disk, for a restart with stale memory."""
    world.servers[fault.node].node.save()
    world.tell("save", node=fault.node)
    return True


def _hang(world: World, fault: Fault) -> bool:
    """Stop the node with its sockets open, as SIGSTOP does."""
    server = world.servers[fault.node]
    if not server.up or server.hung:
        return False
    server.hung = True
    world.tell("hang", node=fault.node, lasts=fault.lasts)
    world.schedule(world.now + fault.lasts, _wake, server)
    return True


def _wake(server: SimServer) -> None:
    if server.hung:
        server.world.tell("go_on", node=server.index)
        server.go_on()


def _slow(world: World, fault: Fault) -> bool:
    """Delay all requests to the node by `amount` ns."""
    server = world.servers[fault.node]
    server.slow_by = fault.amount
    world.tell("slow", node=fault.node, by=fault.amount, lasts=fault.lasts)
    world.schedule(world.now + fault.lasts, _quicken, server)
    return True


def _quicken(server: SimServer) -> None:
    server.slow_by = 0


def _read_only(world: World, fault: Fault) -> bool:
    """Make the node a replica for a while; it keeps its keys."""
    node = world.servers[fault.node].node
    node.read_only = True
    world.tell("readonly", node=fault.node, lasts=fault.lasts)
    world.schedule(world.now + fault.lasts, _writable, world.servers[fault.node])
    return True


def _failover(world: World, fault: Fault) -> bool:
    """Make the node a replica of an empty master for a while, so that it loses its keys."""
    server = world.servers[fault.node]
    before = dict(server.node.keys)
    server.node.flush()
    server.node.read_only = True
    world.tell("failover", node=fault.node, lasts=fault.lasts)
    world.forgot(server, before, "failover")
    world.schedule(world.now + fault.lasts, _fail_back, (world, server, world.now))
    return True


def _fail_back(what: tuple[World, SimServer, int]) -> None:
    """Make it a master again; each client that reaches it should have seen what it was."""
    world, server, since = what
    _writable(server)
    index = server.index
    clients = [p for p in world.processes if not (p.dead or p.cut_off[index] & 1)]
    if any(process.nodes[index].demoted_at < since for process in clients):
        world.history.forgotten.append((since, index, "unseen failover"))


def _full(world: World, fault: Fault) -> bool:
    """Let the node reach maxmemory: it refuses writes that need memory."""
    world.servers[fault.node].node.full = True
    world.tell("full", node=fault.node, lasts=fault.lasts)
    world.schedule(world.now + fault.lasts, _writable, world.servers[fault.node])
    return True


def _writable(server: SimServer) -> None:
    server.node.read_only = server.node.full = False


def _flush(world: World, fault: Fault) -> bool:
    """Delete all keys of the node by FLUSHALL."""
    server = world.servers[fault.node]
    before = dict(server.node.keys)
    server.node.flush()
    world.tell("flush", node=fault.node)
    world.forgot(server, before, "flush")
    return bool(before)


def _evict(world: World, fault: Fault) -> bool:
    """Evict one key of the node, the `amount`-th."""
    server = world.servers[fault.node]
    before = dict(server.node.keys)
    if not before:
        return False
    key = sorted(before)[fault.amount % len(before)]
    server.node.evict(key)
    world.tell("evict", node=fault.node, key=key.decode())
    world.forgot(server, before, "eviction")
    return True


def _unlock(world: World, fault: Fault) -> bool:
    """Delete all locks on all nodes, which breaks mutual exclusion."""
    del fault
    keys = {key for server in world.servers for key in server.node.keys if not is_side_key(key)}
    for server in world.servers:
        before = dict(server.node.keys)
        for key in sorted(keys & before.keys()):
            server.node.evict(key)
            world.tell("evict", node=server.index, key=key.decode())
        world.forgot(server, before, "DEL")
    return bool(keys)


def _mute(world: World, fault: Fault) -> bool:
    """Take the right to publish away from the clients of a node, so that it cannot call."""
    world.servers[fault.node].mute = True
    world.tell("mute", node=fault.node, lasts=fault.lasts)
    world.schedule(world.now + fault.lasts, _unmute, world.servers[fault.node])
    return True


def _unmute(server: SimServer) -> None:
    server.mute = False


def _lose_calls(world: World, fault: Fault) -> bool:
    """Lose the calls of a node."""
    server = world.servers[fault.node]
    server.loses_calls = True
    world.tell("lose_calls", node=fault.node, lasts=fault.lasts)
    world.schedule(world.now + fault.lasts, _call_in_time, server)
    return True


def _delay_calls(world: World, fault: Fault) -> bool:
    """Delay the calls of a node by up to four node timeouts."""
    server = world.servers[fault.node]
    server.calls_late_by = 1 + world.policy.node_timeout * fault.amount // 250
    world.tell("delay_calls", node=fault.node, by=server.calls_late_by, lasts=fault.lasts)
    world.schedule(world.now + fault.lasts, _call_in_time, server)
    return True


def _call_in_time(server: SimServer) -> None:
    server.loses_calls, server.calls_late_by = False, 0


def _echo(world: World, fault: Fault) -> bool:
    """Deliver the last call of a node a second time, `lasts` ns later."""
    world.schedule(world.now + fault.lasts, _call_again, world.servers[fault.node])
    world.tell("echo", node=fault.node, lasts=fault.lasts)
    return True


def _call_again(server: SimServer) -> None:
    if server.up and server.last_call is not None:
        link, push = server.last_call
        if link.epoch == server.epoch:
            link.push(push)


def _foreign(world: World, fault: Fault) -> bool:
    """Have another library take the first lock if it is free, and release it by a plain delete."""
    key, token = world.resources[0].encode(), b"x.%d" % len(world.foreign)
    world.foreign.add(token)
    ttl_ms = world.policy.max_ttl_ms
    up = [server for server in world.servers if server.up and not server.hung]
    taken = [s for s in up if s.node.set_nx_px(key, token, ttl_ms, s.at_ms()) == b"OK"]
    world.tell("foreign", nodes=[server.index for server in taken], lasts=fault.lasts)
    # It holds the lock only with a majority.
    lasts = fault.lasts if 2 * len(taken) > world.policy.n else 0
    world.schedule(world.now + lasts, _unlock_foreign, (world, key, token))
    return bool(taken)


def _unlock_foreign(what: tuple[World, bytes, bytes]) -> None:
    world, key, token = what
    for server in world.servers:
        entry = server.node.alive(key, server.at_ms())
        if entry is not None and entry.value == token:
            server.node.evict(key)


def _script_flush(world: World, fault: Fault) -> bool:
    """Flush the node's script cache (SCRIPT FLUSH)."""
    world.servers[fault.node].node.known.clear()
    world.tell("script_flush", node=fault.node)
    return True


def _wall_step(world: World, fault: Fault) -> bool:
    """Step the node's wall clock by `amount` ns."""
    world.servers[fault.node].wall.step(fault.amount, world.now)
    world.tell("step", node=fault.node, by=fault.amount)
    return True


def _wall_drift(world: World, fault: Fault) -> bool:
    """Run the node's wall clock at `amount` parts per million from now on."""
    world.servers[fault.node].wall.run_at(fault.amount, world.now)
    world.tell("drift", node=fault.node, pace=fault.amount)
    return True


# --- connections -----------------------------------------------------------------------------


def _links(process: Process) -> list[Link]:
    return [link for ways in process.links for link in ways if link is not None]


def _all_links(world: World, node: int) -> list[Link]:
    links = (link for process in world.processes for link in _links(process))
    return [link for link in links if link.server.index == node]


def _struck(world: World, fault: Fault) -> list[Link]:
    """Return the connections between the fault's client (-1: all) and its node."""
    links = _all_links(world, fault.node)
    return [link for link in links if fault.client in (-1, link.process.index)]


def _break(world: World, fault: Fault) -> bool:
    """Reset connections; `amount` per mille of the requests in flight arrive `lasts` ns late."""
    links = _struck(world, fault)
    for link in links:
        world.tell("break", client=link.process.index, node=fault.node, late_by=fault.lasts)
        _cut(link, fault.amount, fault.lasts)
    return bool(links)


def _cut(link: Link, survivors: int, late_by: int) -> None:
    if link.process.paused:  # the process sees the reset when it continues
        link.process.later(0, lambda _: _cut(link, survivors, late_by))
    else:
        link.process.loses(link, survivors, late_by)


def _lose(what: str) -> Strike:
    """Return a fault that drops all messages in one direction and later breaks the connection."""

    def lose(world: World, fault: Fault) -> bool:
        links = _struck(world, fault)
        for link in links:
            setattr(link, f"swallows_{what}", True)
            world.tell(f"lose_{what}", client=link.process.index, node=fault.node)
            world.schedule(world.now + fault.lasts, _hang_up, link)
        return bool(links)

    return lose


def _duplicate(world: World, fault: Fault) -> bool:
    """Deliver the next request on each connection a second time, `lasts` ns later."""
    links = _struck(world, fault)
    for link in links:
        link.duplicate_after = fault.lasts
        world.tell("duplicate", client=link.process.index, node=fault.node)
    return bool(links)


def _partition(way: int, name: str) -> Strike:
    """Return a partition that holds requests (1), replies (2) or both (3) until its end."""

    def part(world: World, fault: Fault) -> bool:
        processes = [p for p in world.processes if fault.client in (-1, p.index) and not p.dead]
        for process in processes:
            process.cut_off[fault.node] |= way
            world.schedule(world.now + fault.lasts, _rejoin, (process, fault.node))
        world.tell(name, client=fault.client, node=fault.node, lasts=fault.lasts)
        return bool(processes)

    return part


def _rejoin(ends: tuple[Process, int]) -> None:
    process, node = ends
    if process.cut_off[node] and not process.dead:
        process.world.tell("rejoin", client=process.index, node=node)
        _reach(process, node)


def _reach(process: Process, node: int) -> None:
    process.cut_off[node] = 0
    for link in _links(process):
        if link.server.index == node:
            link.let_through()


def _flap(world: World, fault: Fault) -> bool:
    """Inject `amount` short partitions in sequence, within `lasts` ns."""
    step = fault.lasts // (2 * fault.amount)
    part = _partition(3, "partition")
    for turn in range(fault.amount):
        short = replace(fault, kind="partition", lasts=step)
        world.schedule(world.now + 2 * turn * step, _again, (world, part, short))
    return True


def _again(blow: tuple[World, Strike, Fault]) -> None:
    world, part, fault = blow
    if not world.in_recovery:
        part(world, fault)


KINDS: dict[str, Strike] = {
    "pause": _pause,
    "stall": _stall,
    "client_crash": _client_crash,
    "cancel": _cancel,
    "vanish": _vanish,
    "client_step": _client_step,
    "client_drift": _client_drift,
    "client_wall_step": _client_wall_step,
    "crash_kept": _crash("kept"),
    "crash_saved": _crash("saved"),
    "crash_lost": _crash("lost"),
    "save": _save,
    "hang": _hang,
    "slow": _slow,
    "read_only": _read_only,
    "failover": _failover,
    "full": _full,
    "flush": _flush,
    "evict": _evict,
    "unlock": _unlock,
    "script_flush": _script_flush,
    "mute": _mute,
    "echo": _echo,
    "lose_calls": _lose_calls,
    "delay_calls": _delay_calls,
    "foreign": _foreign,
    "wall_step": _wall_step,
    "wall_drift": _wall_drift,
    "break": _break,
    "lose_requests": _lose("requests"),
    "lose_replies": _lose("replies"),
    "duplicate": _duplicate,
    "partition": _partition(3, "partition"),
    "one_way_to": _partition(1, "one_way_to"),
    "one_way_from": _partition(2, "one_way_from"),
    "flap": _flap,
}
