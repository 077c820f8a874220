"""Docstrings that a class takes from another (`__doc__ = Other.__doc__`), for mkdocstrings.

griffe reads the source without running it, so it finds none there.
"""

# griffe is in .venv-docs alone, not where the checks run.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

from typing import Any

import griffe


class TakenDocstrings(griffe.Extension):  # type: ignore[misc] # of a library without types
    """A step of griffe that copies the docstring that a class names."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Complete all classes of a package, when it is loaded."""
        complete(pkg)


def complete(module: griffe.Module) -> None:
    """Complete the classes of a module and of those below it."""
    for found in module.members.values():
        if isinstance(found, griffe.Module):  # an import is an alias: it may lead in a circle
            complete(found)
        elif isinstance(found, griffe.Class):
            taken = found.members.get("__doc__")
            if isinstance(taken, griffe.Attribute):
                name = str(taken.value).removesuffix(".__doc__")
                found.docstring = module[name].docstring
