"""The long run itself: a few seconds of it, ended by Ctrl-C, and what it makes of an overlap."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tests.harness.traffic.processes import ROOT, Processes
from tests.harness.validate.history import History
from tests.servers.scenarios.scenario import Scenario
from tests.servers.soak import report


def test_ctrl_c_ends_it_cleanly_with_the_table_so_far(tmp_path: Path) -> None:
    """Faults that were begun are ended, the traffic is judged; nothing is left behind."""
    command = [sys.executable, "-u", "-m", "tests.servers.soak", "--minutes", "60", "--seed", "1"]
    given = os.environ | {"PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, env=given, stdout=pipe, text=True) as soak:
        assert soak.stdout is not None
        assert soak.stdout.readline() == "soak: 60 minutes, 5 nodes, seed 1\n"
        assert soak.stdout.readline() == "under way\n"
        time.sleep(1.5)  # the first faults begin at once
        soak.send_signal(signal.SIGINT)
        output = soak.stdout.read()
    print(output)
    assert soak.returncode == 0
    assert "interrupted: ending what was begun" in output
    assert "overlaps           0" in output
    assert output.endswith("ALL IS WELL\n")
    assert list(tmp_path.iterdir()) == [], "no file where it was started"


def test_an_overlap_is_reported_with_what_happened_around_it(tmp_path: Path) -> None:
    """Exit 1, the pair, and the records near it."""
    lines = [
        {"what": "hello", "at": 0, "pid": 1, "face": "blocking", "workers": 2},
        {
            "what": "begin",
            "at": 10,
            "pid": 1,
            "turn": 1,
            "resource": "r",
            "token": "a",
            "until": 99,
        },
        {
            "what": "begin",
            "at": 20,
            "pid": 1,
            "turn": 2,
            "resource": "r",
            "token": "b",
            "until": 99,
        },
        {"what": "end", "at": 30, "pid": 1, "turn": 2, "how": "released"},
        {"what": "end", "at": 40, "pid": 1, "turn": 1, "how": "released"},
        {"what": "bye", "at": 50, "pid": 1},
    ]
    (tmp_path / "1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with Processes([]) as none:
        scenario = Scenario([], none, History(tmp_path), 1.0)
        verdict = scenario.finish()
    output: list[str] = []
    assert report(scenario, Counter(), verdict, output.append) == 1
    text = "\n".join(output)
    print(text)
    assert "overlaps           1" in text
    assert "OVERLAP of 0.000 ms" in text
    assert text.count("turn 1.1  token a") == 2, "in the pair, and in the story around it"
    assert text.endswith("WRONG")
