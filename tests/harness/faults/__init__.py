"""Faults for real nodes and real clients, each of which can prove that it is in force.

    with sites(5) as nodes:
        redlock = Redlock([site.proxy.url for site in nodes])
        for fault in FAULTS:
            fault.begin(nodes[0])
            print(fault.proof(nodes[0]))
            fault.end(nodes[0])

`FAULTS` are all faults of nodes, ready to use, with settings under which a run of some seconds sees
them work; one object may be in force on several sites, on one site one fault at a time. `clients`
has the faults of clients. None of them needs root. Leaves traffic to `traffic`, and judging to
`validate`.

- A fault with `loses_memory` breaks what Redlock assumes when the node votes again inside the ttl.
  It never touches the proxy, so a run that must be safe does `site.proxy.refuse()`, `begin()`,
  `end()`, waits for max_ttl and does `site.proxy.accept()`.
- `client-pause` and `debug-sleep` end by themselves after a second: ask for the proof at once.
  Their `end()` waits for the rest of it.
- What a fault sets for its proof begins with `faults:probe:` and expires.
"""

from tests.harness.faults import shim
from tests.harness.faults.clock import ClockJump
from tests.harness.faults.commands import (
    ClientPause,
    DebugSleep,
    Demoted,
    Eviction,
    FlushAll,
    OutOfMemory,
    PausedWrites,
    Replica,
    ScriptFlush,
    WrongAcl,
)
from tests.harness.faults.fault import Fault
from tests.harness.faults.network import (
    BlackHole,
    CutRequests,
    Delay,
    DropReplies,
    HalfClose,
    LostReplies,
    Refuse,
    Reset,
    Stall,
    Throttle,
)
from tests.harness.faults.processes import Kill, RestartEmpty, RestartFromAof, Sigstop
from tests.harness.faults.proxy import Proxy
from tests.harness.faults.site import Site, sites

__all__ = ["FAULTS", "Fault", "Proxy", "Site", "sites"]

FAULTS: tuple[Fault, ...] = (
    Sigstop(),
    Kill(),
    RestartEmpty(),
    RestartFromAof("always"),
    RestartFromAof("everysec"),
    ClientPause(),
    PausedWrites(),
    DebugSleep(),
    ScriptFlush(),
    FlushAll(),
    Eviction(),
    OutOfMemory(),
    Demoted(),
    Replica(),
    WrongAcl("acl-no-set", take="-set", give_back="+@all"),
    WrongAcl("acl-no-keys", take="resetkeys", give_back="~*"),
    Delay(0.01, jitter=0.02),
    Delay(0.2, jitter=0.1, name="delay-long"),
    Throttle(20_000),
    DropReplies(3),
    HalfClose(),
    Stall(),
    Reset(),
    CutRequests(),
    Refuse(),
    BlackHole(),
    BlackHole(deliver=False),
    LostReplies(),
    # Without a C compiler, or on macOS, clocks stay as they are.
    *((ClockJump(+5.0), ClockJump(-5.0)) if shim.available() else ()),
)
