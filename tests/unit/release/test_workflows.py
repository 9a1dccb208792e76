"""The workflows run targets of the Makefile, pinned actions, and nothing that belongs to one owner."""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from tests import ROOT

FILES = sorted((ROOT / ".github" / "workflows").iterdir())
WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in FILES}
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
COMMAND = re.compile(r"""make (?P<target>[a-z-]+)(?: [A-Z]+=(?:'[^']*'|"\$[A-Z_]+"))*""")
PINNED = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
FIX = "fix: correct `.github/workflows`, or add the target to Makefile"


def jobs() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the name and the definition of each job."""
    for name, workflow in WORKFLOWS.items():
        for key, job in workflow["jobs"].items():
            yield f"{name}: {key}", job


def commands() -> Iterator[tuple[str, str]]:
    """Yield the job and the text of each command."""
    for name, job in jobs():
        for step in job["steps"]:
            if "run" in step:
                yield name, step["run"].strip()


@pytest.mark.drift
def test_each_command_is_a_target_of_the_makefile() -> None:
    """So that everything that a workflow does also runs elsewhere."""
    for name, command in commands():
        match = COMMAND.fullmatch(command)
        assert match, f"{name}: `{command}` is no call of make: {FIX}"
        assert match["target"] in TARGETS, f"{name}: Makefile has no target {match['target']}: {FIX}"


@pytest.mark.drift
def test_workflows_run_what_must_pass() -> None:
    """Tests before each merge and each release, the packages, the long tests."""
    ran = [(name, COMMAND.fullmatch(command)) for name, command in commands()]
    targets = [(name, match["target"]) for name, match in ran if match]
    by_file = {
        file: {target for name, target in targets if name.startswith(file)}
        for file in ("ci.yaml", "release.yaml", "soak.yaml")
    }
    assert by_file["ci.yaml"] >= {"test", "test-all", "quick", "dist", "smoke"}, FIX
    assert by_file["release.yaml"] >= {"verify", "test", "test-all", "smoke", "dist", "publish"}, FIX
    assert by_file["soak.yaml"] == {"soak", "fuzz"}, FIX


@pytest.mark.drift
def test_actions_are_pinned_by_commit() -> None:
    """With the version as a comment, and each action with one commit only."""
    pins: dict[str, set[str]] = {}
    for path in FILES:
        for used in re.findall(r"uses: (.+)", path.read_text()):
            assert PINNED.fullmatch(used), (
                f"{path.name}: {used}: fix: pin a commit in `.github/workflows`, with the version as a comment"
            )
            pins.setdefault(used.partition("@")[0], set()).add(used)
    assert [name for name, used in pins.items() if len(used) > 1] == [], (
        "fix: use one commit of each action in `.github/workflows`"
    )


@pytest.mark.drift
def test_jobs_are_limited() -> None:
    """In time and in permissions; no later step can use the credentials of the checkout."""
    for name, workflow in WORKFLOWS.items():
        assert workflow["permissions"] == {}, f"{name}: {FIX}"
        assert "group" in workflow["concurrency"], f"{name}: {FIX}"
    for name, job in jobs():
        assert job["timeout-minutes"] <= 350, f"{name}: {FIX}"
        assert job["permissions"], f"{name}: {FIX}"
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False, f"{name}: {FIX}"


@pytest.mark.drift
def test_jobs_that_sign_run_no_code() -> None:
    """No command of the repository runs in a job that can sign or publish as this workflow."""
    for name, job in jobs():
        if "id-token" in job["permissions"] or "attestations" in job["permissions"]:
            assert not [step for step in job["steps"] if "run" in step], f"{name}: {FIX}"
    assert WORKFLOWS["release.yaml"]["jobs"]["pypi"]["environment"] == "pypi", FIX


@pytest.mark.drift
def test_both_images_are_built_before_either_is_pushed() -> None:
    """The default target is built by the step that pushes it first."""
    steps = WORKFLOWS["release.yaml"]["jobs"]["image"]["steps"]
    builds = [step["with"] for step in steps if step["uses"].startswith("docker/build-push-action@")]
    assert [(build.get("target"), build.get("push", False)) for build in builds] == [
        ("dcgm-exporter", False),
        (None, True),
        ("dcgm-exporter", True),
    ], FIX


@pytest.mark.drift
def test_workflows_work_in_any_repository() -> None:
    """Every name of a repository or an image comes from the repository that runs the workflow."""
    for path in FILES:
        named = re.findall(r"(?:ghcr\.io|github\.com|docker\.io|pypi\.org)/\S+", path.read_text())
        assert named == [], f"{path.name}: fix: derive it from github.repository, as release/tag.py does"


@pytest.mark.drift
def test_every_supported_python_is_tested() -> None:
    """From the oldest that setup.cfg allows on, without a gap."""
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(ROOT / "setup.cfg")
    oldest = int(setup["options"]["python_requires"].removeprefix(">=3."))
    ci = WORKFLOWS["ci.yaml"]["jobs"]
    with_python = [step["with"]["python-version"] for step in ci["oldest"]["steps"] if "python-version" in str(step)]
    tested = sorted(
        int(version.removeprefix("3.")) for version in [*ci["test"]["strategy"]["matrix"]["python"], *with_python]
    )
    assert tested == list(range(oldest, max(tested) + 1)), FIX
