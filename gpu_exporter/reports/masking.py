"""Replaces names by pseudonyms, and secrets in command lines, so that others may read them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

# `--api-key=x`, `--password x`, `TOKEN=x`, `https://user:x@host`.
_NAMED = re.compile(
    r"(?i)([\w-]*(?:key|token|secret|passw(?:or)?d|passphrase|pwd|credentials?|auth)\b\s*(?:=|:|\s)\s*)(?!-)(\S+)"
)
_IN_URL = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^/\s:@]*:)[^/\s@]+(?=@)")
# Values that look like a key, whatever they are named: long words of mixed characters, and known prefixes.
_LOOKS_SECRET = re.compile(r"\b(?:hf_|sk-|ghp_|github_pat_|glpat-|xox[abp]-|AKIA|eyJ)[\w.-]{8,}")
HIDDEN = "***"
# What a label that names something is called in its pseudonym; those of jobs share one with workloads.
_KINDS = {
    "process": "program",
    "uid": "user",
    "pod_uid": "pod-uid",
    "container_id": "container",
    "hpc_job": "workload",
    "job_id": "workload",
}
# Labels of owners and processes that name nobody.
_HARMLESS = frozenset({"pid", "rank", "step", "shares", "runtime", "GPU_I_ID", "memory", "sm"})


def without_secrets(command: str) -> str:
    """Return a command line without what looks like a password, a token or a key."""
    text = _NAMED.sub(rf"\1{HIDDEN}", command)
    return _LOOKS_SECRET.sub(HIDDEN, _IN_URL.sub(rf"\1{HIDDEN}", text))


class Names:
    """Replaces each name by a pseudonym of its kind, such as pod-3f2a9c1b. It is the same on all nodes and at any time.

    Without `mask`, names stay. A pseudonym is derived from the name alone, so a guess of the name can be checked.
    """

    def __init__(self, *, mask: bool) -> None:
        self.mask = mask

    def name(self, kind: str, text: str, form: str = "") -> str:
        """Return a name, or its pseudonym; in its `form`, `{}` is replaced by 12 hexadecimal digits. Nothing is
        replaced by nothing.
        """
        if not (self.mask and text):
            return text
        digits = blake2b(text.encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()
        return (form or f"{kind}-{{:.8}}").format(digits)

    def labels(self, labels: Mapping[str, Any]) -> dict[str, Any]:
        """Return the labels of an owner or a process in which names are replaced. Unknown labels count as names."""
        if not self.mask:
            return dict(labels)
        return {
            label: value if label in _HARMLESS else self.name(_KINDS.get(label, label), value)
            for label, value in labels.items()
        }

    def event(self, event: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an XID without the name of its process, which the kernel's message has, too."""
        if not self.mask:
            return event
        return {**event, "process": self.name("program", event["process"]), "message": ""}
