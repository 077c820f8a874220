"""The checks of one node at a time, as pure functions of the facts."""

from __future__ import annotations

from ipaddress import ip_address

from quorlock._cli.doctor.facts import Facts, NodeFacts
from quorlock._cli.doctor.findings import Check, Result, each, error, ok, unknown, warning

_OLDEST = 6  # the first with RESP3 and with permissions for each user
_CLIENTS_FULL = 0.8
_MEMORY_FULL = 0.9
# The share of the drift allowance above which a clock's error gets a warning.
_DRIFT_SHARE = 0.5
_CLOSED = ok("clients from elsewhere need a password")
_NO_INFO = unknown("it refuses INFO", "grant +info (docs/how-to/acl.md)")


def _reach(facts: Facts) -> list[Result]:
    silent = [node for node in facts.nodes if node.silent]
    results = [_silence(node)._replace(node=node.address) for node in silent]
    answering = facts.n - len(silent)
    if facts.n > 1 and answering < facts.quorum:
        found = (
            f"{answering} of {facts.n} nodes answer, and a lock needs {facts.quorum}: there is none"
        )
        results.append(error(found, "fix those that do not, as described for each"))
    return results or [ok("all nodes answer")]


def _silence(node: NodeFacts) -> Result:
    if node.login:
        fix = "check username and password (QUORLOCK_PASSWORD, the TOML file, the URL)"
        return error(f"it refuses the login: {node.silent}", fix)
    return error(node.silent, "start it, or check address, network, firewall and TLS settings")


def _commands(node: NodeFacts, _: Facts) -> Result:
    if not node.refused:
        return ok("all that quorlock uses are allowed, and work")
    found = "; ".join(f"{name}: {text}" for name, text in node.refused.items())
    if any("NOPERM" in text for text in node.refused.values()):
        return error(
            found,
            "grant the permissions of docs/how-to/acl.md, for prefix + resource and quorlock:*",
        )
    return error(found, "the node must accept writes and scripts; its error says what is wrong")


def _role(node: NodeFacts, facts: Facts) -> Result:
    if node.info is None:
        return _NO_INFO
    role = node.info_fields.get("role", "none")
    if role == "master":
        return ok("all are masters")
    master = (
        f"{node.info_fields.get('master_host', '?')}:{node.info_fields.get('master_port', '?')}"
    )
    listed = " (which is in the list too)" * any(master == n.address for n in facts.nodes)
    of = f" of {master}{listed}" * (role == "slave")
    return error(f"role {role.replace('slave', 'replica')}{of}", "name an independent master")


def _mode(node: NodeFacts, _: Facts) -> Result:
    if node.info is None:
        return _NO_INFO
    mode = node.info_fields.get("redis_mode") or node.info_fields.get("server_mode", "standalone")
    if mode != "standalone":
        fix = "run it standalone (cluster-enabled no), or name other servers"
        return error(f"it runs in {mode} mode", fix)
    return ok("all are standalone")


def _between(node: NodeFacts, _: Facts) -> Result:
    """Check for a proxy, a load balancer or a port mapping."""
    if node.info is None:
        return _NO_INFO
    if node.other_run_id and node.other_run_id != node.run_id:
        fix = "name the servers themselves, not a load balancer"
        return error("two connections came to two different servers", fix)
    port, theirs = node.node.port, node.number("tcp_port")
    if node.node.path is None and node.node.tls is None and theirs and port != theirs:
        found = (
            f"the port in the list is {port}, but it listens on {theirs}: a proxy or a port mapping"
        )
        fix = "fine for a port mapping to one server for ever; else name the server itself"
        return warning(found, fix)
    return ok("no proxy is seen in front of the nodes")


def _eviction(node: NodeFacts, _: Facts) -> Result:
    if node.info is None:
        return _NO_INFO
    policy, limit = node.info_fields.get("maxmemory_policy"), node.number("maxmemory")
    if policy is None or limit is None:
        return unknown("INFO has no maxmemory_policy", "check maxmemory-policy yourself")
    if limit == 0 or policy == "noeviction":
        used = node.number("used_memory") or 0
        if limit and used > limit * _MEMORY_FULL:
            return warning(f"{used:,} of {limit:,} bytes are used", "raise maxmemory")
        return ok("no key is evicted")
    found = f"maxmemory {limit:,} bytes, maxmemory-policy {policy}: it may drop keys of locks"
    return error(found, "CONFIG SET maxmemory-policy noeviction, and in its configuration file")


def _persistence(node: NodeFacts, facts: Facts) -> Result:
    trusted = node.node.durable or facts.restart_guard is None
    if not trusted:
        return ok("none is needed: the restart guard keeps a node out that came back")
    said = "durable=yes says" if node.node.durable else "restart_guard none assumes"
    fix = "appendonly yes and appendfsync always, or "
    fix += "drop durable=yes" if node.node.durable else 'restart_guard = "uptime"'
    if node.info is None:
        return _NO_INFO
    if node.info_fields.get("aof_enabled") != "1":
        return error(f"{said} that it forgets nothing, and appendonly is off", fix)
    policy = node.config.get("appendfsync")
    if policy is None:
        return unknown(
            "it refuses CONFIG GET appendfsync", "grant +config|get, or check it yourself"
        )
    if policy != "always":
        return error(f"{said} that it forgets nothing, and appendfsync is {policy}", fix)
    return ok("appendfsync always")


def _elapsed(node: NodeFacts, facts: Facts) -> Result:
    """Check the rate of a server's clock against the local clock."""
    rate = node.rate
    if not node.readings:
        return unknown("it refuses TIME", "grant +time")
    share = facts.drift_factor * _DRIFT_SHARE
    if rate is None or (rate.error > share and rate.surely_off <= share):
        return unknown("its replies take too long to measure its clock by", "ask from nearer by")
    if rate.surely_off <= share:
        return ok(f"clocks run at this machine's rate, within {share:.2%}")
    what = f"{abs(rate.off):.2%} too {'fast' if rate.off > 0 else 'slow'} (± {rate.error:.2%})"
    allowed = f"drift_factor allows {facts.drift_factor:.2%}"
    found = f"its clock runs {what} against this machine's; {allowed}"
    fix = "slew slowly (chrony: maxslewrate 1000), never step, do not suspend the machine"
    too_far = rate.surely_off > facts.drift_factor
    return error(found, fix) if too_far else warning(found, fix)


def _latency(node: NodeFacts, facts: Facts) -> Result:
    taken = sorted(node.latencies)
    half, nearly_all = taken[len(taken) // 2], taken[int(len(taken) * 0.99)]
    found = f"p50 {_ms(half)}, p99 {_ms(nearly_all)}; node_timeout is {_ms(facts.node_timeout)}"
    fix = "a larger node_timeout (docs/explanation/performance.md), or a nearer or less busy node"
    if half >= facts.node_timeout:
        return error(found, fix)
    if nearly_all >= facts.node_timeout:
        return warning(found, fix)
    return ok(f"p99 is below node_timeout, {_ms(facts.node_timeout)}")


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"


def _version(node: NodeFacts, _: Facts) -> Result:
    if node.info is None:
        return _NO_INFO
    fields = node.info_fields
    name = "Valkey" if "valkey_version" in fields else "Redis"
    version = fields.get("valkey_version") or fields.get("redis_version", "unknown")
    major = fields.get("redis_version", "").partition(".")[0]
    if major.isdecimal() and int(major) < _OLDEST:
        return warning(f"{name} {version}", "Redis 6 or newer, or any Valkey")
    tracking = {
        True: ", with tracking",
        False: ", without tracking",
        None: ", tracking not granted",
    }
    return ok(f"{name} {version}{tracking[node.tracking]}")


def _tls(node: NodeFacts, _: Facts) -> Result:
    tls = node.node.tls
    if tls is not None and tls.context is None and tls.verify == "none":
        return warning("any certificate is taken", "give ssl_ca_certs, drop ssl_cert_reqs=none")
    if tls is None and not node.here:
        return warning(
            "requests and replies cross the network in clear text", "rediss:// and a TLS port"
        )
    return ok("nothing crosses a network in clear text")


def _clients(node: NodeFacts, _: Facts) -> Result:
    now, most = node.number("connected_clients"), node.number("maxclients")
    if most is None and node.config.get("maxclients", "").isdecimal():
        most = int(node.config["maxclients"])
    if now is None or most is None:
        return unknown("maxclients is unknown", "grant +info and +config|get, or check it yourself")
    if now > most * _CLIENTS_FULL:
        return warning(f"{now} of {most} clients are connected", "raise maxclients")
    return ok("there is room for more clients")


def _access(node: NodeFacts, _: Facts) -> Result:
    """Check whether clients from elsewhere are admitted without a password."""
    guarded = node.number("tcp_port") == 0 or node.config.get("protected-mode") == "yes"
    if not node.open_to_all or (node.here and guarded):
        return _CLOSED
    fix = "requirepass or an ACL (docs/how-to/acl.md), or bind it to 127.0.0.1"
    if not node.here:
        return error(f"any client that reaches {node.peer} gets in without a password", fix)
    if "bind" not in node.config or "protected-mode" not in node.config:
        found = "it has no password, and refuses CONFIG GET bind and protected-mode"
        return unknown(found, "grant +config|get, or check it yourself")
    bound = node.config["bind"].split()
    if bound and all(map(_loopback, bound)):
        return _CLOSED
    return error(f"bind {' '.join(bound) or '*'}, protected-mode no, and no password", fix)


def _loopback(address: str) -> bool:
    try:
        return ip_address(address.removeprefix("-")).is_loopback
    except ValueError:
        return address.removeprefix("-") == "localhost"


CHECKS = (
    Check("reach", "A node that does not answer has no vote.", _reach),
    Check("commands", "Without one of them there is no lock, or no end of it.", each(_commands)),
    Check("role", "A replica replies too, but its data may be old or be undone.", each(_role)),
    Check(
        "mode",
        "Redlock counts independent masters: a Cluster shares out one data set, and Sentinel"
        " moves its master to a replica that may lack the lock.",
        each(_mode),
    ),
    Check(
        "between",
        "A change of the server behind an address hides restarts and mixes up votes.",
        each(_between),
    ),
    Check("eviction", "A lock whose key is evicted is free for the next one.", each(_eviction)),
    Check(
        "persistence", "A node that comes back without its keys votes twice.", each(_persistence)
    ),
    Check("elapsed", "A lock ends by the node's clock: a jump ends it early.", each(_elapsed)),
    Check("latency", "A reply after node_timeout is no vote.", each(_latency)),
    Check("version", "Older servers lack commands, users and mended bugs.", each(_version)),
    Check("tls", "A stolen token can break a lock; a stolen password, all locks.", each(_tls)),
    Check("clients", "A full server turns the next client away.", each(_clients)),
    Check("access", "A stranger can break every lock, and do much worse.", each(_access)),
)
