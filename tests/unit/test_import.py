"""`import gpu_exporter` loads nothing else until a name is used, so that it can be part of any program."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import gpu_exporter

LOADED = "sorted(name for name in sys.modules if name.startswith('gpu_exporter'))"


def fresh(program: str, *options: str) -> tuple[Any, str]:
    """Run a program that prints JSON in a new interpreter; return the JSON and stderr."""
    done = subprocess.run(
        [sys.executable, *options, "-c", f"import json, sys\n{program}"], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout), done.stderr


def test_the_import_loads_no_other_module() -> None:
    loaded, _ = fresh(f"import gpu_exporter; print(json.dumps({LOADED}))")

    assert loaded == ["gpu_exporter"]


def test_each_name_works_when_it_is_used() -> None:
    """Also with `from`, and a name is the same object as in its module."""
    names, _ = fresh(
        "import gpu_exporter\n"
        "from gpu_exporter import GpuReading\n"
        "from gpu_exporter.app.library import read\n"
        "from gpu_exporter.model.errors import GpuExporterError\n"
        "assert gpu_exporter.read is read\n"
        "assert gpu_exporter.GpuExporterError is GpuExporterError\n"
        "assert gpu_exporter.GpuReading is GpuReading\n"
        "print(json.dumps([getattr(gpu_exporter, name) is not None for name in gpu_exporter.__all__]))"
    )

    assert names == [True] * len(gpu_exporter.__all__)


def test_a_light_name_does_not_load_the_library() -> None:
    """The version and an exception need no bindings of the driver."""
    loaded, _ = fresh(f"import gpu_exporter; gpu_exporter.__version__; print(json.dumps({LOADED}))")

    assert loaded == ["gpu_exporter", "gpu_exporter.version"]


def test_names_are_listed_before_they_are_used() -> None:
    listed, _ = fresh("import gpu_exporter; print(json.dumps(dir(gpu_exporter)))")

    assert set(gpu_exporter.__all__) <= set(listed)


def test_an_unknown_name_is_an_attribute_error() -> None:
    message, _ = fresh(
        "import gpu_exporter\ntry: gpu_exporter.reed\nexcept AttributeError as error: print(json.dumps(str(error)))"
    )

    assert message == "module 'gpu_exporter' has no attribute 'reed'"


def test_the_server_loads_no_parser_of_untrusted_content() -> None:
    """JSON and YAML need a MiB each, but by default nothing to decode comes. It never needs NumPy."""
    modules = "gpu_exporter.app.run, gpu_exporter.live_page.thread"
    loaded, _ = fresh(f"import {modules}; print(json.dumps([*sys.modules]))")

    assert {"msgspec", "numpy", "yaml"}.isdisjoint(loaded)


def test_the_server_loads_nothing_that_profiles() -> None:
    """Only `--profile` does."""
    loaded, _ = fresh(f"import gpu_exporter.app.run; print(json.dumps({LOADED}))")

    assert "gpu_exporter.app.node" in loaded
    assert [
        name for name in loaded if ".profiling." in f"{name}." or ".traces" in name or name.endswith("serving.profiles")
    ] == []
