"""A training job pays next to nothing for the import, which loads nothing of the exporter."""

from __future__ import annotations

import sys

from tests.unit.test_import import LOADED, fresh

ALLOWED = ("gpu_exporter", "gpu_exporter.model", "gpu_exporter.model.job_message", "gpu_exporter.training")


def test_the_import_loads_only_the_timer() -> None:
    loaded, _ = fresh(f"import gpu_exporter.training; print(json.dumps({LOADED}))")

    assert [name for name in loaded if name not in ALLOWED and not name.startswith("gpu_exporter.training.")] == []


def test_the_import_loads_only_the_standard_library() -> None:
    """Without the site packages of this environment, whose hooks load others."""
    modules, _ = fresh(
        "before = set(sys.modules); import gpu_exporter.training; print(json.dumps(sorted(set(sys.modules) - before)))",
    )

    roots = {name.partition(".")[0] for name in modules}
    assert roots - sys.stdlib_module_names == {"gpu_exporter"}
