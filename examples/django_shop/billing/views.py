import math

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_POST

from billing.locks import redlock
from quorlock import AcquireTimeout


@require_POST
def charge(request: HttpRequest, number: int) -> HttpResponse:
    try:
        with redlock.lock(f"invoice:{number}", timeout=2.0):
            return HttpResponse("charged")
    except AcquireTimeout as error:
        response = HttpResponse("busy", status=409)
        response["Retry-After"] = math.ceil(error.holder_ttl or 1)
        return response
