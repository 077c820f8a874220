"""Benchmarks of quorlock against other lock libraries and against bare sockets.

`make bench`, or `python -m bench --help`. README.md in this folder explains what is measured.
"""
