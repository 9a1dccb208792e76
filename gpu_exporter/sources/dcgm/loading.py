"""Finds and imports DCGM's Python bindings, and makes them load DCGM's library.

The only module that imports them. They come as plain files with a DCGM installation and are no Python package: their
directory is on the path only while they are imported.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from gpu_exporter.model.errors import SourceLost
from gpu_exporter.sources.dcgm.bindings import Bindings
from gpu_exporter.sources.dcgm.errors import LIBRARY_NOT_FOUND, DcgmError
from gpu_exporter.sources.dcgm.places import DCGM_3, DCGM_4, MODULE, has_bindings

WHERE = f"install the package datacenter-gpu-manager-4-core ({DCGM_4}), or datacenter-gpu-manager for DCGM 3 ({DCGM_3})"
AGAIN = "reinstall the package that they came with"
MODULES = ("dcgmvalue", "dcgm_structs", "dcgm_fields", "dcgm_agent", "dcgm_errors")
IMPORTING = threading.Lock()


def load(folder: Path | None = None, places: Sequence[Path] = (DCGM_4, DCGM_3)) -> Bindings:
    """Find and import the bindings. Raises SourceLost with one line that says how to install them."""
    chosen = _chosen(folder, places)
    with IMPORTING:
        agent, structs, errors = _imported(chosen)
    where = Path(str(structs.__file__)).parent
    if chosen is not None and where.resolve() != chosen.resolve():
        message = f"DCGM: its bindings of {where} are in use already, not those of {chosen}"
        raise SourceLost(message, "no_bindings", fix="restart gpu-exporter")
    try:
        bindings = Bindings(agent, structs, errors, where)
        _load_library(structs, where)
    except DcgmError as error:
        raise _no_library(error, where) from error
    except (OSError, AttributeError) as error:
        raise _unloadable(error, where) from error
    return bindings


def _load_library(structs: Any, where: Path) -> None:
    """Load DCGM's library from where the bindings look for it, else from beside them. Raises DcgmError.

    The bindings themselves look only where the packages install it.
    """
    try:
        structs._dcgmInit()
    except structs.DCGMError as error:
        folders = [folder for folder in (where, where.parent / "lib") if any(folder.glob("libdcgm.so*"))]
        if int(error.value) != LIBRARY_NOT_FOUND or not folders:
            raise DcgmError(int(error.value)) from error
        try:
            structs._dcgmInit(str(folders[0]))
        except structs.DCGMError as again:
            raise DcgmError(int(again.value)) from again


def _chosen(folder: Path | None, places: Sequence[Path]) -> Path | None:
    """Return the directory of the bindings; None if they can only be on the path."""
    if folder is None:
        return next(filter(has_bindings, places), None)
    if not has_bindings(folder):
        what = f"has no {MODULE}.py" if folder.is_dir() else "is no directory"
        raise SourceLost(f"DCGM: --dcgm-bindings {folder} {what}", "no_bindings", fix=WHERE)
    return folder


def _imported(folder: Path | None) -> tuple[ModuleType, ModuleType, ModuleType]:
    on_path = folder is None or str(folder) in sys.path
    if not on_path:
        sys.path.insert(0, str(folder))
    try:
        import dcgm_agent
        import dcgm_errors
        import dcgm_structs
    except ModuleNotFoundError as error:
        if error.name not in MODULES:
            raise SourceLost(
                f"DCGM: its Python bindings can't be imported: {error}", "no_bindings", fix=AGAIN
            ) from error
        fix = f"{WHERE}, or name their directory with --dcgm-bindings"
        raise SourceLost("DCGM: its Python bindings are not installed", "no_bindings", fix=fix) from error
    except (Exception, SystemExit) as error:  # a broken file may raise anything
        what = " ".join(str(error).split()) or type(error).__name__
        raise SourceLost(f"DCGM: its Python bindings can't be imported: {what}", "no_bindings", fix=AGAIN) from error
    finally:
        if not on_path:
            with suppress(ValueError):
                sys.path.remove(str(folder))
    return dcgm_agent, dcgm_structs, dcgm_errors


def _no_library(error: DcgmError, where: Path) -> SourceLost:
    if error.code != LIBRARY_NOT_FOUND:
        return _unloadable(error, where)
    fix = "install the package that they came with, or name the library's directory in LD_LIBRARY_PATH"
    return SourceLost(f"DCGM: the bindings in {where} find no libdcgm.so of their version", "no_library", fix=fix)


def _unloadable(error: Exception, where: Path) -> SourceLost:
    message = f"DCGM: the library of the bindings in {where} does not load: {error}"
    return SourceLost(message, "no_library", fix=AGAIN)
