"""Replaces names by placeholders, and secrets in command lines, so that a report can be passed on."""

from __future__ import annotations

import re
from collections import defaultdict

# `--api-key=x`, `--password x`, `TOKEN=x`, `https://user:x@host`.
_NAMED = re.compile(
    r"(?i)([\w-]*(?:key|token|secret|passw(?:or)?d|passphrase|pwd|credentials?|auth)\b\s*(?:=|:|\s)\s*)(?!-)(\S+)"
)
_IN_URL = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^/\s:@]*:)[^/\s@]+(?=@)")
# Values that look like a key, whatever they are named: long words of mixed characters, and known prefixes.
_LOOKS_SECRET = re.compile(r"\b(?:hf_|sk-|ghp_|github_pat_|glpat-|xox[abp]-|AKIA|eyJ)[\w.-]{8,}")
HIDDEN = "***"


def without_secrets(command: str) -> str:
    """Return a command line without what looks like a password, a token or a key."""
    text = _NAMED.sub(rf"\1{HIDDEN}", command)
    return _LOOKS_SECRET.sub(HIDDEN, _IN_URL.sub(rf"\1{HIDDEN}", text))


class Names:
    """Replaces each name by a placeholder of its kind: pod-1, pod-2. The same name always gets the same one.

    Without `mask`, names stay.
    """

    def __init__(self, *, mask: bool) -> None:
        self.mask = mask
        self._names: dict[str, dict[str, str]] = defaultdict(dict)

    def name(self, kind: str, text: str, form: str = "") -> str:
        """Return a name, or its placeholder; in its `form`, `{}` is the number. Nothing is replaced by nothing."""
        if not (self.mask and text):
            return text
        of_kind = self._names[kind]
        return of_kind.setdefault(text, (form or f"{kind}-{{}}").format(len(of_kind) + 1))
