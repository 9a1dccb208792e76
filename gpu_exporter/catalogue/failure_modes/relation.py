"""Which failure modes explain which others: the one relation behind incidents, inhibitions and the texts of runbooks.

Each mode declares what it explains, and where (`FailureMode.explains`). A finding is explained by a mode that is found in
the same place; that may be explained in turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Place, Scope

# The labels that the alerts of a cause and of its effect share, besides the cluster. Both alerts must have the last one.
LABELS: Mapping[Place, tuple[str, ...]] = {
    Place.GPU: ("UUID",),
    Place.NODE: ("node",),
    Place.JOB: ("namespace", "workload"),
    Place.CLUSTER: (),
}
Effects = Mapping[str, frozenset[Place]]


def effects(modes: Sequence[FailureMode]) -> Mapping[str, Effects]:
    """Return for each mode the modes that it explains, and in which places.

    Raises ValueError, with the fix, for an unknown name or a circle.
    """
    found = {mode.name: _of(mode) for mode in modes}
    for name, effects_of_mode in found.items():
        for effect in effects_of_mode:
            if effect not in found:
                raise ValueError(
                    f"catalogue/failure_modes: {name} explains {effect}, which is no mode: correct the name"
                )
    done: set[str] = set()
    for name in found:
        _refuse_circle(name, found, (), done)
    return found


def is_of_job(mode: FailureMode) -> bool:
    """Return whether a cause on several GPUs is one incident for each job that it slows down; otherwise, for each node."""
    return mode.scope is not Scope.DEVICE or mode.domain not in (Domain.HEALTH, Domain.NETWORK)


def _of(mode: FailureMode) -> Effects:
    names = dict.fromkeys(name for of_place in mode.explains.values() for name in of_place)
    return {name: frozenset(place for place, those in mode.explains.items() if name in those) for name in names}


def _refuse_circle(name: str, found: Mapping[str, Effects], path: tuple[str, ...], done: set[str]) -> None:
    if name in path:
        circle = " -> ".join((*path[path.index(name) :], name))
        raise ValueError(f"catalogue/failure_modes: `explains` has a circle, {circle}: remove one of these steps")
    if name not in done:
        for effect in found[name]:
            _refuse_circle(effect, found, (*path, name), done)
        done.add(name)
