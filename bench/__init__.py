"""The benchmark: quorlock beside what a user would pick instead, and beside the bare sockets.

`make bench`, or `python -m bench --help`; README.md in this folder says what is measured and why.
"""
