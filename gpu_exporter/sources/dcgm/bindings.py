"""The calls of DCGM's Python bindings with plain values as arguments and results, the same in DCGM 3.3 and 4.

Only the low-level modules are used: the classes on top of them (`pydcgm`) keep lists of their own, delete on
destruction, and import a package named `common`. Every function here may block for as long as the host engine does:
for 60 s if that is stopped.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from gpu_exporter.io.decoding import printable
from gpu_exporter.io.user_text import Hostengine
from gpu_exporter.sources.dcgm.errors import FUNCTION_NOT_FOUND, DcgmError
from gpu_exporter.sources.dcgm.health_and_peers import DcgmIncident
from gpu_exporter.sources.dcgm.values import Entity, EntityGroup, FieldAnswer, answer

# The most fields of a field group, and the most entities of one call, in a host engine (DCGM 3.3 has the lower limits).
MOST_FIELDS, MOST_ENTITIES = 127, 64
# Sampled values or live ones (`DCGM_FV_FLAG_LIVE_DATA`). A live read of a profiling field of a GPU crashes the host
# engine (4.0 to 4.6): only fields of NVLinks are read live.
SAMPLED, LIVE = 0, 1
AUTOMATIC, EMPTY_GROUP = 1, 1
ALL_SYSTEMS = 0xFFFFFFFF


class Attributes(NamedTuple):
    """A GPU's identity; empty where DCGM does not know it."""

    uuid: str
    name: str
    pci: str
    serial: str
    vbios: str
    inforom: str
    driver: str


class MigPart(NamedTuple):
    """A GPU instance or compute instance: its entity, its parent's entity, NVML's number, and its compute slices."""

    entity: Entity
    parent: Entity
    number: int
    slices: int


class Bindings:
    """The imported modules. `folder` is where they were found."""

    def __init__(self, agent: ModuleType, structs: ModuleType, errors: ModuleType, folder: Path) -> None:
        self.folder = folder
        self._agent: Any = agent
        self._structs: Any = structs
        self._faults = {
            code: name
            for name, code in vars(errors).items()
            if name.startswith("DCGM_FR_") and not name.startswith("DCGM_FR_EC_") and isinstance(code, int)
        }
        # Kept as long as this object, because the library would otherwise call into freed memory.
        self._enumerate = agent.dcgmFieldValueEntityEnumeration_f(_collect)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn the bindings' exceptions into DcgmError. Their own text would need another call to the library."""
        try:
            yield
        except self._structs.DCGMError as error:
            raise DcgmError(int(error.value)) from error

    def version(self) -> str:
        """Return the version of the library, such as 4.6.0; empty if it has none."""
        with suppress(DcgmError), self._errors():
            info = _text(self._agent.dcgmVersionInfo().rawBuildInfoString)
            return next((part.partition(":")[2] for part in info.split(";") if part.startswith("version:")), "")
        return ""

    def connect(self, to: Hostengine, timeout: float) -> Any:
        """Return a handle of the host engine, or of one in this process. Raises DcgmError."""
        with self._errors():
            self._structs._dcgmInit()
            self._agent.dcgmInit()
            if to.embedded:
                return self._agent.dcgmStartEmbedded(AUTOMATIC)
            if hasattr(self._agent, "dcgmConnect_v3"):
                parameters = self._structs.c_dcgmConnectV3Params_v1()
                where = f"unix://{to.socket}" if to.socket else f"tcp://{to.address}"
                connect = self._agent.dcgmConnect_v3
            else:
                parameters = self._structs.c_dcgmConnectV2Params_v2()
                parameters.addressIsUnixSocket = int(bool(to.socket))
                where = to.socket or to.address
                connect = self._agent.dcgmConnect_v2
            parameters.persistAfterDisconnect = 0
            parameters.timeoutMs = int(timeout * 1000)
            return connect(where, parameters)

    def disconnect(self, handle: Any, to: Hostengine) -> None:
        """Release a handle. Raises DcgmError."""
        with self._errors():
            (self._agent.dcgmStopEmbedded if to.embedded else self._agent.dcgmDisconnect)(handle)

    def gpus(self, handle: Any, *, supported: bool) -> list[int]:
        """Return DCGM's numbers of all GPUs since its start, or of those that it can read now."""
        with self._errors():
            function = self._agent.dcgmGetAllSupportedDevices if supported else self._agent.dcgmGetAllDevices
            return sorted(int(number) for number in function(handle))

    def attributes(self, handle: Any, gpu: int) -> Attributes:
        """Return the identity of a GPU. Raises DcgmError."""
        with self._errors():
            identifiers = self._agent.dcgmGetDeviceAttributes(handle, gpu).identifiers
        names = ("uuid", "deviceName", "pciBusId", "serial", "vbios", "inforomImageVersion", "driverVersion")
        return Attributes(*(_text_or_empty(getattr(identifiers, name)) for name in names))

    def entities(self, handle: Any, group: EntityGroup) -> list[int]:
        """Return the entities of a kind that the host engine can read. Raises DcgmError."""
        with self._errors():
            return sorted(int(number) for number in self._agent.dcgmGetEntityGroupEntities(handle, int(group), 1))

    def cores(self, handle: Any) -> dict[int, int]:
        """Return the CPU of each core. Raises DcgmError."""
        with self._errors():
            hierarchy = self._agent.dcgmGetCpuHierarchy(handle)
        cpu_of = {}
        for cpu in hierarchy.cpus[: hierarchy.numCpus]:
            for word, bits in enumerate(cpu.ownedCores.bitmask):
                cpu_of.update({word * 64 + bit: int(cpu.cpuId) for bit in range(64) if bits >> bit & 1})
        return cpu_of

    def parts(self, handle: Any) -> list[MigPart]:
        """Return the MIG instances of all GPUs. Raises DcgmError."""
        with self._errors():
            hierarchy = self._agent.dcgmGetGpuInstanceHierarchy(handle)
        return [
            MigPart(
                _entity(part.entity),
                _entity(part.parent),
                int(
                    part.info.nvmlInstanceId
                    if part.entity.entityGroupId == EntityGroup.GPU_I
                    else part.info.nvmlComputeInstanceId
                ),
                int(part.info.nvmlProfileSlices),
            )
            for part in hierarchy.entityList[: hierarchy.count]
        ]

    def links(self, handle: Any) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        """Return the states of the NVLinks of each GPU and each NVSwitch: 0 none, 1 disabled, 2 down, 3 up."""
        with self._errors():
            status = self._agent.dcgmGetNvLinkLinkStatus(handle)
        gpus = {int(gpu.entityId): list(gpu.linkState) for gpu in status.gpus[: status.numGpus]}
        switches = {
            int(switch.entityId): list(switch.linkState) for switch in status.nvSwitches[: status.numNvSwitches]
        }
        return gpus, switches

    def watch_health(self, handle: Any, group: Any) -> None:
        """Make the host engine sample what it needs for the health checks of a group. Raises DcgmError."""
        with self._errors():
            self._agent.dcgmHealthSet(handle, group, ALL_SYSTEMS)

    def health(self, handle: Any, group: Any) -> tuple[DcgmIncident, ...]:
        """Return the findings of the health checks of a group. Raises DcgmError."""
        with self._errors():
            response = self._agent.dcgmHealthCheck(handle, group)
        return tuple(
            DcgmIncident(
                int(item.system), int(item.health), _entity(item.entityInfo), self._fault(int(item.error.code))
            )
            for item in response.incidents[: response.incidentCount]
        )

    def _fault(self, code: int) -> str:
        return self._faults.get(code, f"DCGM_FR_UNKNOWN({code})")

    def peers(self, handle: Any) -> dict[int, dict[int, int]]:
        """Return the state of the NVLink between two GPUs, by DCGM's numbers of both. Raises DcgmError."""
        if not hasattr(self._agent, "dcgmGetNvLinkP2PStatus"):  # before DCGM 4.4
            raise DcgmError(FUNCTION_NOT_FOUND)
        status = self._structs.c_dcgmNvLinkP2PStatus_v1()
        with self._errors():
            self._agent.dcgmGetNvLinkP2PStatus(handle, status)
        gpus = [(int(gpu.entityId), list(gpu.linkStatus)) for gpu in status.gpus[: status.numGpus]]
        return {number: {other: int(states[place]) for place, (other, _) in enumerate(gpus)} for number, states in gpus}

    def group(self, handle: Any, name: str, entities: Iterable[Entity]) -> Any:
        """Create a group of entities; return its handle. Raises DcgmError."""
        with self._errors():
            group = self._agent.dcgmGroupCreate(handle, EMPTY_GROUP, name)
        try:
            for entity in entities:
                with self._errors():
                    self._agent.dcgmGroupAddEntity(handle, group, int(entity.group), entity.id)
        except DcgmError:
            with suppress(DcgmError):
                self.drop_group(handle, group)
            raise
        return group

    def drop_group(self, handle: Any, group: Any) -> None:
        """Destroy a group. Raises DcgmError."""
        with self._errors():
            self._agent.dcgmGroupDestroy(handle, group)

    def field_group(self, handle: Any, name: str, fields: Sequence[int]) -> Any:
        """Create a field group; return its handle. Raises DcgmError: BADPARAM if a field is unknown."""
        with self._errors():
            return self._agent.dcgmFieldGroupCreate(handle, list(fields), name)

    def drop_field_group(self, handle: Any, fields: Any) -> None:
        """Destroy a field group. Raises DcgmError."""
        with self._errors():
            self._agent.dcgmFieldGroupDestroy(handle, fields)

    def watch(self, handle: Any, group: Any, fields: Any, seconds: float, keep: float, samples: int) -> None:
        """Make the host engine sample fields of a group, and wait for the first samples. Raises DcgmError."""
        with self._errors():
            self._agent.dcgmWatchFields(handle, group, fields, int(seconds * 1e6), keep, samples)

    def unwatch(self, handle: Any, group: Any, fields: Any) -> None:
        """The opposite of `watch`. Raises DcgmError."""
        with self._errors():
            self._agent.dcgmUnwatchFields(handle, group, fields)

    def latest(
        self, handle: Any, entities: Sequence[Entity], fields: Sequence[int], *, live: bool = False
    ) -> dict[tuple[Entity, int], FieldAnswer]:
        """Return the last sample of each field of each entity; for links also live values. Raises DcgmError."""
        assert not live or all(entity.group is EntityGroup.LINK for entity in entities)
        answers: dict[tuple[Entity, int], FieldAnswer] = {}
        pair = self._structs.c_dcgmGroupEntityPair_t
        for first in range(0, len(entities), MOST_ENTITIES):
            batch = entities[first : first + MOST_ENTITIES]
            known = {(int(entity.group), entity.id): entity for entity in batch}
            for start in range(0, len(fields), MOST_FIELDS):
                pairs = [pair(group, number) for group, number in known]
                with self._errors():
                    values = self._agent.dcgmEntitiesGetLatestValues(
                        handle, pairs, list(fields[start : start + MOST_FIELDS]), LIVE if live else SAMPLED
                    )
                for group, number, field, sample in _decoded(values):
                    answers[known[group, number], field] = sample
        return answers

    def samples_since(
        self, handle: Any, group: Any, fields: Any, stamp: int
    ) -> tuple[list[tuple[Entity, FieldAnswer]], int]:
        """Return every sample after a timestamp, and the timestamp for the next call. Raises DcgmError."""
        samples: list[tuple[Entity, FieldAnswer]] = []
        with self._errors():
            stamp = self._agent.dcgmGetValuesSince_v2(handle, group, fields, stamp, self._enumerate, samples)
        return samples, int(stamp)


def _collect(group: int, entity: int, values: Any, count: int, samples: int) -> int:
    """Called by the library with a pointer to a Python list."""
    into = ctypes.cast(samples, ctypes.py_object).value
    into.extend((Entity(EntityGroup(group), entity), _answer(values[place])) for place in range(count))
    return 0


# `dcgmFieldValue_v2`, as far as numbers need it: version, kind and number of the entity, field, type, status, unused,
# time stamp, value. Attributes of structures cost more than everything else that is done with a value.
VALUE = struct.Struct("<IIIHhiIq8s")
INTEGER, DOUBLE = struct.Struct("<q").unpack, struct.Struct("<d").unpack


def _decoded(values: Any) -> Iterator[tuple[int, int, int, FieldAnswer]]:
    """Yield the kind and number of the entity, the field and the answer of each value of an array."""
    buffer, size = memoryview(values).cast("B"), ctypes.sizeof(values) // len(values)
    for place in range(len(values)):
        _, group, number, field, letter, status, _, stamp, raw = VALUE.unpack_from(buffer, place * size)
        kind = chr(letter)
        value: float | str
        if kind == "s":
            value = _text(values[place].value.str)
        else:
            (value,) = DOUBLE(raw) if kind == "d" else INTEGER(raw)
        yield group, number, field, answer(status, kind, value, stamp)


def _answer(value: Any) -> FieldAnswer:
    kind, union = chr(value.fieldType), value.value
    raw = union.dbl if kind == "d" else _text(union.str) if kind == "s" else union.i64
    return answer(int(value.status), kind, raw, int(value.ts))


def _entity(pair: Any) -> Entity:
    return Entity(EntityGroup(pair.entityGroupId), int(pair.entityId))


def _text(value: object) -> str:
    """Return a printable text, which some structures of the bindings have decoded already."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return printable(text, len(text))


def _text_or_empty(value: object) -> str:
    text = answer(0, "s", _text(value), 0).value
    return "" if text is None else str(text)
