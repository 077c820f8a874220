"""Mutants: small defects planted into the library, each with the tests that must fail for it.

`python -m tests.exhaustive.mutants [names]` applies each to a copy of the tree, runs the tests
that it names there, and says which did not notice. QUORLOCK_THOROUGH=1 runs that too.
"""

from __future__ import annotations

from tests.exhaustive.mutants.core import CORE
from tests.exhaustive.mutants.drivers import DRIVERS
from tests.exhaustive.mutants.faces import FACES
from tests.exhaustive.mutants.family import FAMILY
from tests.exhaustive.mutants.mutant import Mutant
from tests.exhaustive.mutants.permits import PERMITS

_ALL = (*CORE, *DRIVERS, *FACES, *FAMILY, *PERMITS)
MUTANTS: dict[str, Mutant] = {mutant.name: mutant for mutant in _ALL}
assert len(MUTANTS) == len(_ALL), "two have the same name"
