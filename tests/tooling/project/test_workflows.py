"""The workflows name commands, files and settings that exist, and may do no more than they need."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.release import problem, section_of
from tools.snippets import make_targets

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / ".github"
if not FOLDER.exists():
    pytest.skip("an sdist has no workflows", allow_module_level=True)
WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in FOLDER.glob("workflows/*.yml")}
# A place of an action: owner/name@tag, or a hash and its tag in a comment.
PINNED = re.compile(r"[\w.-]+/[\w./-]+@(v\d+|release/v\d+|[0-9a-f]{40})")


def jobs() -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{name}:{key}", job)
        for name, flow in WORKFLOWS.items()
        for key, job in flow["jobs"].items()
    ]


def steps() -> list[tuple[str, dict[str, Any]]]:
    return [(place, step) for place, job in jobs() for step in job["steps"]]


def commands() -> list[tuple[str, str]]:
    return [(place, step["run"]) for place, step in steps() if "run" in step]


def test_there_are_workflows_for_tests_docs_and_releases() -> None:
    assert {"ci.yml", "docs.yml", "release.yml"} <= set(WORKFLOWS)


@pytest.mark.parametrize(("place", "command"), commands())
def test_what_a_step_runs_exists(place: str, command: str) -> None:
    for words in re.findall(r"\bmake ((?:[a-z-]+ ?)+)", command):
        assert set(words.split()) <= make_targets(ROOT), place
    for file in re.findall(r"(?<![\w$/.])((?:\.ci|tools|tests|bench|docs)/[\w./-]+)", command):
        assert (ROOT / file).exists(), f"{place}: {file}"
    for module in re.findall(r"-m (tools\.\w+)", command):
        assert (ROOT / f"{module.replace('.', '/')}.py").exists(), f"{place}: {module}"


@pytest.mark.parametrize(("place", "job"), jobs())
def test_a_job_ends_and_waits_only_for_jobs_that_exist(place: str, job: dict[str, Any]) -> None:
    assert job["timeout-minutes"] <= 60
    flow = WORKFLOWS[place.partition(":")[0]]
    needed = job.get("needs", [])
    assert ({needed} if isinstance(needed, str) else set(needed)) <= set(flow["jobs"])


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_may_read_and_what_else_it_may_is_said_for_a_job(name: str) -> None:
    assert WORKFLOWS[name]["permissions"] == {"contents": "read"}
    for place, job in jobs():
        for right, level in job.get("permissions", {}).items():
            assert (right, level) in {
                *(("contents", "write"), ("contents", "read")),
                *(("id-token", "write"), ("pages", "write")),
            }, place


@pytest.mark.parametrize(("place", "step"), steps())
def test_actions_are_pinned_and_keep_no_credentials(place: str, step: dict[str, Any]) -> None:
    if "uses" not in step:
        return
    assert PINNED.fullmatch(step["uses"]), f"{place}: {step['uses']}"
    if step["uses"].startswith("actions/checkout@") and "pages" not in place:
        assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize(("place", "command"), commands())
def test_a_step_has_no_expression_in_its_shell(place: str, command: str) -> None:
    """The name of a branch that a shell expands could be code."""
    assert "${{" not in command, place


def test_the_pythons_are_those_of_the_package() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    told = [
        line.rpartition(" ")[2]
        for line in settings["project"]["classifiers"]
        if re.search(r":: 3\.\d+$", line)
    ]
    for name, job in (("ci.yml", "python"), ("release.yml", "install")):
        assert WORKFLOWS[name]["jobs"][job]["strategy"]["matrix"]["python"] == told


def test_forms_have_fields() -> None:
    for path in FOLDER.glob("ISSUE_TEMPLATE/[!c]*.yml"):
        form = yaml.safe_load(path.read_text())
        fields = [field["id"] for field in form["body"] if field["type"] != "markdown"]
        assert fields, path
        assert len(set(fields)) == len(fields)
        assert form["name"]
        assert form["description"]


CHANGELOG = "# C\n\n## 0.2.0 — unreleased\n\nnew\n\n## 0.1.0 — 2026-11-01\n\n- old\n"


@pytest.mark.parametrize(
    ("tag", "version", "wrong"),
    [
        ("v0.1.0", "0.1.0", None),
        ("v0.1.1", "0.1.0", "they must be the same"),
        ("v0.2.0", "0.2.0", "give it a date"),
        ("v0.2.0rc1", "0.2.0rc1", None),
        ("v0.3.0", "0.3.0", "no section"),
        ("v0.1", "0.1", "no section"),
    ],
)
def test_a_release_needs_its_tag_and_its_section(tag: str, version: str, wrong: str | None) -> None:
    found = problem(tag, version, section_of(CHANGELOG, version))
    assert (found is None) == (wrong is None)
    assert wrong is None or wrong in str(found)
    if found is None and version == "0.1.0":
        assert section_of(CHANGELOG, version).endswith("- old")
