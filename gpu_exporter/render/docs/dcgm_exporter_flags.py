"""Render the page that lists how each of dcgm-exporter's flags is translated."""

from __future__ import annotations

from gpu_exporter.catalogue.dcgm_exporter import flags
from gpu_exporter.catalogue.dcgm_exporter.flags import FLAGS, SETTINGS, DcgmExporterFlag
from gpu_exporter.config import ENV_PREFIX, flag
from gpu_exporter.render import banner
from gpu_exporter.render.docs.markdown import table

HEAD = f"""# dcgm-exporter's flags

`gpu-exporter serve` accepts the flags and environment variables of dcgm-exporter (4.5.3-4.8.2, and those of the
later source in its repository), so that existing command lines and manifests keep working. `gpu-exporter -f FILE -a
:9400`, without `serve`, works too. The syntax is the same: `-c 5000`, `-c=5000`, `-collect-interval 5000`,
`--collect-interval=5000`.

gpu-exporter's own flags override dcgm-exporter's flags, and `{ENV_PREFIX}*` overrides dcgm-exporter's variables; the
config file has the lowest priority. For a flag that is ignored, one line in the log says what to use instead, and
another names each variable `DCGM_EXPORTER_*` that gpu-exporter does not know. A wrong value prevents the start, with
one line that names the flag or the variable.

"""


def page() -> str:
    """Return docs/dcgm-exporter-flags.md: one row per flag."""
    return banner.markdown(flags) + HEAD + table(("flag", "environment", "becomes", "remarks"), map(_row, FLAGS))


def _row(theirs: DcgmExporterFlag) -> tuple[str, ...]:
    long, *short = theirs.flags
    names = ", ".join(f"`{name}`" for name in (f"--{long}", *(f"-{each}" for each in short)))
    becomes = f"`--{flag(SETTINGS[theirs.setting])}`" if theirs.honoured else "ignored"
    return names, f"`{theirs.env}`", becomes, theirs.hint
