"""dcgm-exporter's flags -> the page that says what becomes of each."""

from __future__ import annotations

from gpu_exporter.catalogue.dcgm_exporter import flags
from gpu_exporter.catalogue.dcgm_exporter.flags import SETTINGS, THEIRS, Theirs
from gpu_exporter.config import ENV_PREFIX, flag
from gpu_exporter.render import banner
from gpu_exporter.render.docs.markdown import table

HEAD = f"""# dcgm-exporter's flags

`gpu-exporter serve` accepts the flags and environment variables of dcgm-exporter (4.5.3-4.8.2, and those that later
release notes name), so its command lines and manifests work unchanged. `gpu-exporter -f FILE -a :9400`, without
`serve`, does the same. All spellings work: `-c 5000`, `-c=5000`, `-collect-interval 5000`, `--collect-interval=5000`.

Settings of gpu-exporter take precedence: its flags over those of dcgm-exporter, then `{ENV_PREFIX}*` over the variables
of dcgm-exporter. The config file comes last. For a flag that is ignored, one line in the log says what to use instead.
After a wrong value, `serve` exits with one line that names the flag or the variable.

"""


def page() -> str:
    """docs/dcgm-exporter-flags.md: one row a flag."""
    return banner.markdown(flags) + HEAD + table(("flag", "environment", "becomes", "remarks"), map(_row, THEIRS))


def _row(theirs: Theirs) -> tuple[str, ...]:
    long, *short = theirs.flags
    names = ", ".join(f"`{name}`" for name in (f"--{long}", *(f"-{each}" for each in short)))
    becomes = f"`--{flag(SETTINGS[theirs.setting])}`" if theirs.honoured else "ignored"
    return names, f"`{theirs.env}`", becomes, theirs.says
