from django.conf import settings

from quorlock import Redlock
from quorlock.fencing import FenceTable

redlock = Redlock(**settings.QUORLOCK)
fences = FenceTable()
