"""The kubectl commands of the docs, with all components installed: each selects one component, by names that exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise

import pytest
import yaml
from helm_python import Chart

from gpu_exporter.cli.commands import SUMMARIES
from tests import ROOT
from tests.support.chart import CHART, NAMESPACE, Object, with_image

pytestmark = pytest.mark.slow

PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "helm/gpu-exporter/README.md", "deploy/kubernetes/README.md")
    ),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "examples").rglob("*.yaml"),
]
# The release of the chart's README, with everything.
RELEASE = "gpu-exporter"
EVERYTHING: Mapping[str, object] = {
    "remediation": {"enabled": True},
    "attribution": {"enabled": True, "pods": True},
    "serviceMonitor": {"enabled": True},
    "test": {"gpus": 1},
}
# Commands of the controller; all others are the exporter's.
CONTROLLERS = ("remediate",)
ANYWHERE = ("NAMESPACE", "gpu-operator", "kube-system")


@cache
def installed() -> tuple[tuple[Object, ...], str]:
    """Return the objects of the release, and the notes that Helm prints."""
    with Chart.load(CHART) as loaded:
        made = loaded.render(with_image(dict(EVERYTHING)), name=RELEASE, namespace=NAMESPACE)
    texts = [text for name, text in made.items() if name.endswith(".yaml")]
    notes = next(text for name, text in made.items() if name.endswith("NOTES.txt"))
    return tuple(each for text in texts for each in yaml.safe_load_all(text) if each), notes


def pods() -> list[Mapping[str, str]]:
    """Return the labels of a pod of each component."""
    found = installed()[0]
    templates = [each["spec"]["template"] for each in found if "template" in each.get("spec", {})]
    return [each["metadata"]["labels"] for each in (*templates, *(each for each in found if each["kind"] == "Pod"))]


def commands(text: str) -> Iterator[str]:
    """Yield the kubectl commands of a page, in blocks and within sentences, each on one line."""
    joined = re.sub(r"\\\n\s*", " ", text)
    fenced = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
    blocks = "\n".join(fenced.findall(joined))
    sentences = re.sub(r"(?<=\S)\n(?=\S)", " ", fenced.sub("", joined))
    spans = re.findall(r"`([^`\n]*kubectl [^`\n]*)`", sentences)
    indented = re.findall(r"^(?: {2}|# ).*kubectl .*$", joined, re.MULTILINE)
    for piece in (*blocks.splitlines(), *(each for each in indented if "`" not in each), *spans):
        yield from (f"kubectl {part.strip()}" for part in re.split(r"\bkubectl ", piece)[1:])


FOUND = sorted(
    {
        command
        for text in (*(page.read_text() for page in PAGES), installed()[1])
        for command in commands(text)
        if re.search(r" (-l|--selector|-n|--namespace|exec|logs|port-forward|rollout)\b", command)
    }
)


def words(command: str) -> list[str]:
    """Return the words of a command up to the end of its line, of a pipe or of a substitution."""
    return shlex.split(re.split(r"\$\(|\)|\s[|&]|\s>", command)[0])


def option(command: list[str], *names: str) -> str:
    return next((after for name, after in pairwise(command) if name in names), "")


def test_there_are_commands() -> None:
    """Otherwise the tests below would test nothing."""
    assert len(FOUND) >= 12
    assert any(" -l " in command for command in FOUND)


@pytest.mark.parametrize("command", FOUND)
def test_a_command_fits_the_release(command: str) -> None:
    """Namespace and names exist; a selector of pods selects those of one component."""
    line = words(command)
    namespace = option(line, "-n", "--namespace")
    assert namespace in ("", NAMESPACE, *ANYWHERE), command
    kinds = {"ds": "DaemonSet", "daemonset": "DaemonSet", "deploy": "Deployment", "deployment": "Deployment"}
    names = {(each["kind"], each["metadata"]["name"]) for each in installed()[0]}
    for word in line:
        kind, slash, name = word.partition("/")
        if slash and kind in kinds:
            assert (kinds[kind], name) in names, command
    selector = option(line, "-l", "--selector")
    if selector and re.search(r" pods?\b", command):
        terms = dict(term.split("=") for term in selector.split(","))
        chosen = {each["app.kubernetes.io/component"] for each in pods() if terms.items() <= each.items()}
        assert len(chosen) == 1, f"{command}: selects {sorted(chosen)}"


@pytest.mark.parametrize("command", [each for each in FOUND if " exec " in each])
def test_a_command_runs_where_it_can(command: str) -> None:
    """`gpu-exporter remediate` in the controller's pod, all others in the exporter's."""
    inside = re.search(r"-- gpu-exporter (\w+)", command)
    if inside:
        assert inside[1] in SUMMARIES, command
        assert ("deploy/" in command) is (inside[1] in CONTROLLERS), command
