from quorlock import Redlock
from quorlock.fencing import FenceTable

redlock = Redlock.from_env()
fences = FenceTable()
