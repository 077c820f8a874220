"""A health endpoint for a service that takes locks: /live, /ready and /metrics."""

import json
import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from quorlock import Health, Redlock

redlock = Redlock.from_env()  # the one that the service locks with


class Probe(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        match self.path:
            case "/live":
                self.reply(200, "text/plain", "alive\n")
            case "/ready":
                health = redlock.check()
                status = 200 if health.ready else 503
                self.reply(status, "application/json", json.dumps(report(health)))
            case "/metrics":
                lines = "".join(f"{line}\n" for line in metrics(redlock.check()))
                self.reply(200, "text/plain; version=0.0.4", lines)
            case _:
                self.reply(404, "text/plain", "try /live, /ready or /metrics\n")

    def reply(self, status: int, content_type: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def report(health: Health) -> dict[str, object]:
    nodes = {node.address: "up" if node.up else node.why for node in health.nodes}
    return {"ready": health.ready, "quorum": health.quorum, "nodes": nodes}


def metrics(health: Health) -> Iterator[str]:
    yield f"locks_ready {int(health.ready)}"
    yield f"locks_quorum {health.quorum}"
    for node in health.nodes:
        yield f'locks_node_up{{node="{node.address}"}} {int(node.up)}'
        if node.up and node.latency is not None:
            yield f'locks_node_latency_seconds{{node="{node.address}"}} {node.latency}'


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "8001"))), Probe) as server:
        print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()
