"""Makes opening some files hang while another file exists, as on a disk or an NFS server that does not answer.

Python imports this at the start of each process that has its folder in PYTHONPATH. HANGING_FILES is the beginning of
the paths, HANGING_WHILE the file that must exist. `<file>.opened` appears with the first open that hangs.
"""

import builtins
import io
import os
import time
from collections.abc import Callable
from typing import Any

BEGINNING, SWITCH = os.environ.get("HANGING_FILES", ""), os.environ.get("HANGING_WHILE", "")
OPEN = os.open


def hanging(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same function, which hangs first."""

    def hangs(path: Any, *arguments: Any, **named: Any) -> Any:
        if not isinstance(path, int) and os.fsdecode(path).startswith(BEGINNING):
            while os.path.exists(SWITCH):
                os.close(OPEN(f"{SWITCH}.opened", os.O_CREAT | os.O_WRONLY))
                time.sleep(0.02)
        return function(path, *arguments, **named)

    return hangs


if BEGINNING and SWITCH:
    for module, name in ((os, "open"), (io, "open"), (builtins, "open")):
        setattr(module, name, hanging(getattr(module, name)))
