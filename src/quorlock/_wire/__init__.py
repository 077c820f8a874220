"""Bytes in, bytes out: what a node's address is, how commands are packed and replies are read.

Pure: no socket, no clock, no thread. Performing it is the drivers' work.
"""
