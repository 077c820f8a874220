from typing import Any

from django.core.mail import send_mail
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from billing.locks import fences, redlock
from billing.models import Invoice
from quorlock import Lease, LeaseLost, NodeError, QuorumUnreachable, StaleFence

RESOURCE = "send-invoices"


class Command(BaseCommand):
    help = "Send the invoices that were not sent yet. Run it on every host: one of them works."

    def handle(self, *_args: Any, **_options: Any) -> None:
        try:
            lease = redlock.lock(RESOURCE, renew=True, fencing=True).try_acquire()
        except (QuorumUnreachable, NodeError) as error:
            raise CommandError(str(error), returncode=69) from error
        if lease is None:
            self.stdout.write("another host is sending")
            return
        try:
            with lease:
                self.send_all(lease)
        except (LeaseLost, StaleFence) as error:
            raise CommandError(f"stopped, the next run continues: {error}") from error

    def send_all(self, lease: Lease) -> None:
        for invoice in Invoice.objects.filter(sent=False):
            with transaction.atomic():
                fences.claim("default", RESOURCE, lease.fence)  # before the row is read again
                is_due = Invoice.objects.filter(pk=invoice.pk, sent=False).update(sent=True)
            if is_due:
                send_mail("Your invoice", f"No. {invoice.pk}", None, [invoice.customer])
