"""examples/django_shop: a real project, run by its manage.py."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from quorlock import Redlock
from quorlock.testing.servers import Servers
from tests.harness.support.wait import until
from tests.tooling.examples.programs import EXAMPLES, PATIENCE, environment, started

pytest.importorskip("django")

# Mail whose first message stops the process: a pause at the worst moment.
STOPPING = """
import os, signal
from django.core.mail.backends.console import EmailBackend

class Backend(EmailBackend):
    def send_messages(self, messages):
        os.kill(os.getpid(), signal.SIGSTOP)
        return super().send_messages(messages)
"""
STOPPING_SETTINGS = """
from shop.settings import *
EMAIL_BACKEND = "stopping.Backend"
"""


class Project:
    """A copy of the project with an empty SQLite database."""

    def __init__(self, folder: Path, urls: list[str]) -> None:
        self._folder = folder
        self._environment = environment(urls)
        shutil.copytree(EXAMPLES / "django_shop", folder)
        (folder / "stopping.py").write_text(STOPPING)
        settings = folder / "shop" / "settings.py"
        # A lease that ends soon after its holder was stopped, and patience on a busy machine.
        changed = '"ttl": 2.0, "node_timeout": 0.5'
        settings.write_text(settings.read_text().replace('"ttl": 10.0', changed))
        (folder / "stopping_settings.py").write_text(STOPPING_SETTINGS)
        self.run("migrate", "--verbosity=0")

    def start(self, *words: str, **variables: str) -> Any:
        pipe = subprocess.PIPE
        variables = {**self._environment, **variables}
        return started(
            "manage.py", *words, env=variables, cwd=self._folder, stdout=pipe, stderr=pipe
        )

    def run(self, *words: str) -> str:
        """Return what it prints; it must succeed."""
        with self.start(*words) as process:
            output, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, errors) == (0, "")
        return str(output)

    def shell(self, program: str) -> tuple[str, str]:
        """Return the output and the errors of lines in Django's shell."""
        with self.start("shell", "--verbosity=0", "-c", program) as process:
            output, errors = process.communicate(timeout=PATIENCE)
        return output, errors

    def add_invoices(self, count: int) -> None:
        self.shell(
            "from billing.models import Invoice\n"
            f"Invoice.objects.bulk_create([Invoice(customer=f'{{n}}@a') for n in range({count})])"
        )

    def sent(self) -> int:
        output, _ = self.shell(
            "from billing.models import Invoice\nprint(Invoice.objects.filter(sent=True).count())"
        )
        return int(output)


@pytest.fixture
def project(nodes: Servers, tmp_path: Path) -> Project:
    return Project(tmp_path / "project", nodes.urls[:3])


def recipients(output: str) -> list[str]:
    return [line.removeprefix("To: ") for line in output.splitlines() if line.startswith("To: ")]


def test_the_migrations_are_those_of_the_models(project: Project) -> None:
    """The project on the page has them from makemigrations."""
    assert "No changes detected" in project.run("makemigrations", "--check")


def test_two_hosts_send_each_invoice_once(project: Project) -> None:
    """Either one host finds the other at work, or it finds nothing left."""
    project.add_invoices(20)
    with ExitStack() as stack:
        both = [stack.enter_context(project.start("send_invoices")) for _ in range(2)]
        outputs = [one.communicate(timeout=PATIENCE) for one in both]
    assert [one.returncode for one in both] == [0, 0]
    assert [errors for _, errors in outputs] == ["", ""]
    mails = recipients("".join(output for output, _ in outputs))
    assert sorted(mails) == sorted(f"{n}@a" for n in range(20))
    assert project.sent() == 20


def test_a_host_that_was_paused_is_refused(project: Project) -> None:
    """Another host takes over; the first one sends nothing more when it resumes."""
    project.add_invoices(3)
    with project.start("send_invoices", DJANGO_SETTINGS_MODULE="stopping_settings") as paused:
        os.waitpid(paused.pid, os.WUNTRACED)
        assert project.run("send_invoices") == "another host is sending\n"
        mails = until(lambda: recipients(project.run("send_invoices")), PATIENCE)
        assert mails == ["1@a", "2@a"]
        project.add_invoices(1)  # work that it would find, had it still the right
        paused.send_signal(signal.SIGCONT)
        output, errors = paused.communicate(timeout=PATIENCE)
    assert recipients(output) == ["0@a"]
    assert paused.returncode == 1
    assert "stopped, the next run continues: 'send-invoices' refuses fence" in errors
    assert project.sent() == 3


def test_a_claim_without_atomic(project: Project) -> None:
    """Django is in autocommit then, which the claim notices."""
    output, errors = project.shell(
        "from billing.locks import fences\nfences.claim('default', 'another', 1)\nprint('claimed')"
    )
    assert output == ""
    assert "ConfigError" in errors
    assert "begin a transaction first" in errors


def test_a_view_while_another_client_has_the_lock(project: Project, nodes: Servers) -> None:
    """The reply is 409 with a Retry-After, and 200 once the lock is free."""
    ask = (
        "from django.test import Client\n"
        "reply = Client(SERVER_NAME='localhost').post('/invoices/42/charge')\n"
        "print(reply.status_code, reply.get('Retry-After'))"
    )
    redlock = Redlock(nodes.urls[:3], node_timeout=0.25)
    with redlock, redlock.lock("invoice:42", ttl=30.0):
        output, _ = project.shell(ask)
    status, retry_after = output.split()
    assert status == "409"
    assert 1 <= int(retry_after) <= 30
    assert project.shell(ask) == ("200 None\n", "")


def test_no_quorum(project: Project, mortal_nodes: Servers) -> None:
    """The command ends with status 69, for the scheduler."""
    for node in mortal_nodes[:2]:
        node.stop()
    with project.start("send_invoices") as process:
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 69
    assert errors.startswith("CommandError: 'send-invoices': ")
    assert "2 are needed" in errors
