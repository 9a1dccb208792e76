"""NVLinks in DCGM: which fields of a GPU have the values of its links, and which fields of links are never watched.

A host engine reads a watched field of a link (entity group LINK) of a GPU at each pass of its update loop, whatever the
interval of the watch: only the functions that read fields of GPUs and MIG instances note when they did
(`lastQueriedUsec`), and the loop passes whenever any watch is due. On four H100s, the error counters of 72 links alone
take 0.17 s a pass. So nothing of a GPU's links is watched here: their values come from fields of the GPU, where it has
them (`OF_GPU`), else from live reads (`LIVE`), which need no watch.

Source: NVIDIA/DCGM, `dcgmlib/src/DcgmCacheManager.cpp`, `ActuallyUpdateAllFields` and `ReadAndCacheNvLinkFields`
(`ReadAndCacheNvLinkPrm` in 4.4), by tag:

    3.3.1 to 3.3.9   none: the loop does not read links of GPUs
    4.0.0 to 4.3.1   none
    4.4.1, 4.4.2     580-592
    4.5.0 to 4.5.3   580-592, 1508, 1509
    4.6.0            580-592, 1508, 1509, 1200-1219, 1404-1419, 1525-1533

Fields of the links of NVSwitches are pushed by a module, and keep to their interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpu_exporter.sources.dcgm.values import Entity, EntityGroup, link

# A field of a link that says whether it is up, and the most links of a GPU that fields of the GPU know.
LINK_STATE, MOST_LINKS = 1508, 18


def _blocks(*starts: int) -> tuple[int, ...]:
    """Return the numbers for links 0-5, 6-11, 12-14 and 15-17, which DCGM assigned one block after the other."""
    return tuple(first + n for first, count in zip(starts, (6, 6, 3, 3), strict=True) for n in range(count))


# By field of a link: the fields of a GPU with the same values, by link. Both have the same reader in DCGM. Those of
# links exist only since 4.6, these since 3.3 (825-842 and 879-896 have values only since 4.6).
OF_GPU: Mapping[int, Sequence[int]] = {
    1525: _blocks(400, 451, 406, 481),
    1526: _blocks(410, 457, 416, 484),
    1527: _blocks(420, 463, 426, 487),
    1528: _blocks(430, 469, 436, 491),
    1529: _blocks(440, 475, 446, 494),
    1530: range(825, 843),
    1531: range(879, 897),
    1532: range(1040, 1076, 2),
    1533: range(1041, 1076, 2),
}
# Those of these that a host engine measures between two samples: a live read has no value.
MEASURED = frozenset(range(1529, 1534))


def is_of_gpu(entity: Entity) -> bool:
    """Return whether an entity is an NVLink of a GPU, not of an NVSwitch."""
    return entity.group is EntityGroup.LINK and entity.id & 0xFF == EntityGroup.GPU


def place_of(board: Entity, index: int, number: int) -> tuple[Entity, int] | None:
    """Return the entity and the field with the values of a field of a GPU's link; None if a link has no such field."""
    numbers = OF_GPU.get(number, ())
    if index < len(numbers):
        return board, numbers[index]
    return None if number in MEASURED else (link(board, index), number)
