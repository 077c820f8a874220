"""Nodes and settings from the environment and a TOML file, for the library and the command line."""
