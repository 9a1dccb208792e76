"""The table of commands, from which `--help` is made without importing them.

The command NAME is `NAME_command` of the module `gpu_exporter.cli.NAME`, which is imported when the command is called.
It parses the options and calls what does the work. Its help is its summary in this table, then its docstring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from inspect import cleandoc
from typing import Any, TypeVar

import click

C = TypeVar("C", bound=click.Command)

# The sections of the help, each with its commands and their summaries.
SECTIONS: Mapping[str, Mapping[str, str]] = {
    "Look at GPUs": {
        "once": "Read every GPU once and print its metrics.",
        "top": "Watch GPUs in the terminal: class, verdict, values, findings, owner and processes of each.",
        "events": "List the latest XIDs in the kernel log, the newest last: which GPU, whose fault, what repairs it.",
        "record": "Record GPUs to a file that `--source replay` replays.",
    },
    "Find problems": {
        "diagnose": "Explain for each GPU what limits it, what is wrong with it, the numbers that show it, and what to"
        " do.",
        "check": "Check whether a job may start on these GPUs. Takes a fraction of a second if they respond.",
        "doctor": "Report what works on this machine, and why the rest does not.",
        "compare": "Read two sources over the same time, and compare each metric of each GPU.",
    },
    "Profile jobs": {
        "profile": "Profile running Python jobs on the GPUs: what they do, by function and line.",
        "trace": "Analyse profiler traces: where the time of each GPU went, why it was idle, and what to change.",
    },
    "Serve metrics": {
        "serve": "Serve /metrics for Prometheus, until SIGTERM.",
        "metrics": "List the metrics that gpu-exporter knows, or those with TEXT in their name or help.",
        "bundle": "Write the rules, dashboards, runbooks, Helm chart and deployment examples of this version.",
        "rewrite": "Rewrite a dashboard or rules for another exporter to use metrics of gpu-exporter.",
        "sampler": "Sample stacks for an exporter that may not read other processes.",
    },
    "Operate nodes": {
        "release": "Make a running exporter release the driver, for a driver upgrade, a MIG change or a GPU reset.",
        "resume": "Make a running exporter use the driver again, after `gpu-exporter release`.",
        "remediate": "Cordon and drain nodes with unfit GPUs and return them to service, within strict bounds.",
    },
}
SUMMARIES = {name: summary for section in SECTIONS.values() for name, summary in section.items()}


class CommandFailure(click.ClickException):
    """An error that ends a command with one line and an exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Commands(Mapping[str, click.Command]):
    """The commands by name. Each is imported when it is looked up."""

    def __getitem__(self, name: str) -> click.Command:
        if name not in SUMMARIES:
            raise KeyError(name)
        found: click.Command = getattr(import_module(f"{__package__}.{name}"), f"{name}_command")
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(SUMMARIES)

    def __len__(self) -> int:
        return len(SUMMARIES)


def command(name: str, cls: type[C], **attributes: Any) -> Callable[[Callable[..., Any]], C]:
    """Return a decorator that makes a function the command of this name in the table."""

    def decorate(function: Callable[..., Any]) -> C:
        text = f"{SUMMARIES[name]}\n\n{cleandoc(function.__doc__ or '')}"
        return click.command(name, cls, help=text.strip(), **attributes)(function)

    return decorate
