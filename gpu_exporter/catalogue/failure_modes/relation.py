"""Which failure modes explain which others: the one relation behind incidents, inhibitions and the texts of runbooks.

Each mode declares the effects that it explains directly (`FailureMode.explains`). An effect of an effect is explained,
too, as far as the same place can be told: what happens on a GPU happens on its node and in its job, but jobs span nodes
and nodes have several jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpu_exporter.catalogue.failure_modes.mode import FailureMode, Place

# The labels that the alerts of a cause and of its effect share, besides the cluster. Both alerts must have the last one.
LABELS: Mapping[Place, tuple[str, ...]] = {
    Place.GPU: ("UUID",),
    Place.NODE: ("node",),
    Place.JOB: ("namespace", "workload"),
    Place.CLUSTER: (),
}
# Where a cause and the effect of its effect share a place, by the places that each step shares.
_CHAINED: Mapping[tuple[Place, Place], Place] = {
    (Place.GPU, Place.GPU): Place.GPU,
    (Place.GPU, Place.NODE): Place.NODE,
    (Place.GPU, Place.JOB): Place.JOB,
    (Place.NODE, Place.GPU): Place.NODE,
    (Place.NODE, Place.NODE): Place.NODE,
    (Place.JOB, Place.GPU): Place.JOB,
    (Place.JOB, Place.JOB): Place.JOB,
    **{(Place.CLUSTER, place): Place.CLUSTER for place in Place},
}
Effects = Mapping[str, frozenset[Place]]


def effects(modes: Sequence[FailureMode]) -> Mapping[str, Effects]:
    """Return for each mode the modes that it explains, directly or through others, and within which places.

    Raises ValueError, with the fix, for an unknown name or a circle.
    """
    by_name = {mode.name: mode for mode in modes}
    found: dict[str, Effects] = {}
    for mode in modes:
        _add(mode, by_name, found, ())
    return found


def _add(
    mode: FailureMode, by_name: Mapping[str, FailureMode], found: dict[str, Effects], path: tuple[str, ...]
) -> Effects:
    if mode.name in path:
        circle = " -> ".join((*path[path.index(mode.name) :], mode.name))
        raise ValueError(f"catalogue/failure_modes: `explains` has a circle, {circle}: remove one of these steps")
    if mode.name in found:
        return found[mode.name]
    of_mode: dict[str, set[Place]] = {}
    for place, names in mode.explains.items():
        for name in names:
            if name not in by_name:
                raise ValueError(
                    f"catalogue/failure_modes: {mode.name} explains {name}, which is no mode: correct the name"
                )
            of_mode.setdefault(name, set()).add(place)
            for effect, further in _add(by_name[name], by_name, found, (*path, mode.name)).items():
                chained = {_CHAINED[place, each] for each in further if (place, each) in _CHAINED}
                of_mode.setdefault(effect, set()).update(chained)
    found[mode.name] = {name: frozenset(places) for name, places in of_mode.items() if places}
    return found[mode.name]
