"""The protocol with one node: bytes in, bytes out, no socket and no clock.

`encoding` makes bytes of commands, `reader` makes replies of bytes and `replies` makes answers of
them.  `pipeline` keeps the
requests in flight on one connection in order; `handshake` and `fitness` decide whether a server may
vote.  `redaction` keeps secrets out of the texts that servers send.
"""
