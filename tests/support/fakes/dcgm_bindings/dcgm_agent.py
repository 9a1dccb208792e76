"""A fake of DCGM's bindings of this name: calls of `fakes.hostengine_server`, with DCGM's return codes.

Environment: `STANDIN_DCGM_TIMEOUT` is how long a call to a host engine that hangs takes, 60 s as in DCGM;
`STANDIN_DCGM_STATE` the file with the GPUs of an embedded host engine.
"""

import json
import os
import socket
import sys
import time
from ctypes import CFUNCTYPE, POINTER, c_int32, c_uint32, c_void_p
from pathlib import Path
from types import SimpleNamespace

import dcgm_fields
import dcgm_structs
import dcgmvalue

# The fake host engine, used as an embedded one.
sys.path.append(str(Path(__file__).parents[4]))

TIMEOUT = float(os.environ.get("STANDIN_DCGM_TIMEOUT", "60"))
dcgmFieldValueEntityEnumeration_f = CFUNCTYPE(
    c_int32, c_uint32, c_uint32, POINTER(dcgm_structs.c_dcgmFieldValue_v1), c_int32, c_void_p
)
assert dcgm_fields.DCGM_FI_DEV_GPU_TEMP_CELSIUS
assert dcgmvalue.DCGM_INT64_BLANK


class _Remote:
    """A connection. Once broken, it stays broken, even if the host engine is back."""

    def __init__(self, address, unix, seconds):
        end = time.monotonic() + seconds
        while True:
            try:
                if unix:
                    self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                    self.socket.connect(address)
                else:
                    host, _, port = address.rpartition(":")
                    self.socket = socket.create_connection((host.strip("[]"), int(port)), timeout=seconds)
                break
            except OSError:
                if time.monotonic() > end:
                    raise dcgm_structs.DCGMError(dcgm_structs.DCGM_ST_CONNECTION_NOT_VALID) from None
                time.sleep(0.1)
        self.socket.settimeout(TIMEOUT)
        self.file = self.socket.makefile("rb")
        self.broken = False

    def call(self, name, *arguments):
        if self.broken:
            raise dcgm_structs.DCGMError(dcgm_structs.DCGM_ST_CONNECTION_NOT_VALID)
        try:
            self.socket.sendall(json.dumps([name, *arguments]).encode() + b"\n")
            line = self.file.readline()
        except TimeoutError:
            self.broken = True
            raise dcgm_structs.DCGMError(dcgm_structs.DCGM_ST_TIMEOUT) from None
        except OSError:
            line = b""
        if not line:
            self.broken = True
            raise dcgm_structs.DCGMError(dcgm_structs.DCGM_ST_CONNECTION_NOT_VALID)
        answer = json.loads(line)
        dcgm_structs._dcgmCheckReturn(answer["code"])
        return answer["value"]

    def close(self):
        self.file.close()
        self.socket.close()


class _Embedded:
    """A host engine in this process."""

    def __init__(self):
        from tests.support.fakes.hostengine_server import Hostengine

        self.engine = Hostengine(Path(os.environ["STANDIN_DCGM_STATE"]))

    def call(self, name, *arguments):
        answer = self.engine.do(id(self), name, list(arguments))
        dcgm_structs._dcgmCheckReturn(answer["code"])
        return answer["value"]

    def close(self):
        self.engine.gone(id(self))


_connections = {}


def _call(handle, name, *arguments):
    connection = _connections.get(handle.value)
    if connection is None:
        raise dcgm_structs.DCGMError(dcgm_structs.DCGM_ST_CONNECTION_NOT_VALID)
    return connection.call(name, *arguments)


def _opened(connection):
    handle = c_void_p(max(_connections, default=0x7FFFFF00) + 1)
    _connections[handle.value] = connection
    return handle


def dcgmInit():
    return 0


def dcgmVersionInfo():
    version = "3.3.9" if dcgm_structs.OF_3 else "4.6.0"
    return SimpleNamespace(rawBuildInfoString=f"version:{version};arch:x86_64;buildtype:Release")


def dcgmStartEmbedded(opMode):
    return _opened(_Embedded())


def dcgmStopEmbedded(handle):
    _connections.pop(handle.value).close()


def dcgmConnect_v2(address, parameters):
    return _opened(_Remote(address, bool(parameters.addressIsUnixSocket), parameters.timeoutMs / 1000 or 5))


if not dcgm_structs.OF_3:

    def dcgmConnect_v3(address, parameters):
        kind, _, where = address.partition("://")
        return _opened(_Remote(where, kind == "unix", parameters.timeoutMs / 1000 or 5))


def dcgmDisconnect(handle):
    connection = _connections.pop(handle.value, None)
    if connection is None:
        raise dcgm_structs.DCGMError(dcgm_structs.DCGM_ST_CONNECTION_NOT_VALID)
    connection.close()


def dcgmGetAllDevices(handle):
    return _call(handle, "gpus", False)


def dcgmGetAllSupportedDevices(handle):
    return _call(handle, "gpus", True)


def dcgmGetDeviceAttributes(handle, gpu):
    known = _call(handle, "attributes", gpu)
    return SimpleNamespace(identifiers=SimpleNamespace(**known))


def dcgmGetEntityGroupEntities(handle, group, flags):
    return _call(handle, "entities", group)


def dcgmGetCpuHierarchy(handle):
    cpus = []
    for number, cores in _call(handle, "cores"):
        words = [sum(1 << core % 64 for core in cores if core // 64 == word) for word in range(16)]
        cpus.append(SimpleNamespace(cpuId=number, ownedCores=SimpleNamespace(bitmask=words)))
    return SimpleNamespace(numCpus=len(cpus), cpus=cpus)


def dcgmGetGpuInstanceHierarchy(handle):
    def pair(of):
        return dcgm_structs.c_dcgmGroupEntityPair_t(*of)

    parts = [
        SimpleNamespace(entity=pair(each["entity"]), parent=pair(each["parent"]), info=SimpleNamespace(**each["info"]))
        for each in _call(handle, "parts")
    ]
    return SimpleNamespace(count=len(parts), entityList=parts)


def dcgmGetNvLinkLinkStatus(handle):
    gpus, switches = (
        [SimpleNamespace(entityId=number, linkState=states) for number, states in owners]
        for owners in _call(handle, "links")
    )
    return SimpleNamespace(numGpus=len(gpus), gpus=gpus, numNvSwitches=len(switches), nvSwitches=switches)


def dcgmHealthSet(handle, group, systems):
    assert systems == 0xFFFFFFFF
    _call(handle, "watch_health", group.value)


def dcgmHealthCheck(handle, group):
    incidents = [
        SimpleNamespace(
            system=system,
            health=health,
            error=SimpleNamespace(code=code),
            entityInfo=dcgm_structs.c_dcgmGroupEntityPair_t(kind, entity),
        )
        for system, health, kind, entity, code in _call(handle, "health", group.value)
    ]
    return SimpleNamespace(incidentCount=len(incidents), incidents=incidents)


if not dcgm_structs.OF_3:

    def dcgmGetNvLinkP2PStatus(handle, status):
        status.gpus = [SimpleNamespace(entityId=gpu, linkStatus=states) for gpu, states in _call(handle, "peers")]
        status.numGpus = len(status.gpus)


def dcgmGroupCreate(handle, kind, name):
    return c_void_p(_call(handle, "group", name))


def dcgmGroupAddEntity(handle, group, kind, entity):
    _call(handle, "group_add", group.value, kind, entity)


def dcgmGroupDestroy(handle, group):
    _call(handle, "drop_group", group.value)


def dcgmFieldGroupCreate(handle, fields, name):
    return c_void_p(_call(handle, "field_group", name, list(fields)))


def dcgmFieldGroupDestroy(handle, group):
    _call(handle, "drop_field_group", group.value)


def dcgmWatchFields(handle, group, fields, microseconds, keep, samples):
    _call(handle, "watch", group.value, fields.value, microseconds / 1e6)


def dcgmUnwatchFields(handle, group, fields):
    _call(handle, "unwatch", group.value, fields.value)


def _fill(into, field, status, letter, value, stamp):
    into.fieldId, into.fieldType, into.status, into.ts = field, ord(letter), status, stamp
    if letter == "d":
        into.value.dbl = value
    elif letter == "s":
        into.value._str = value.encode()
    else:
        into.value.i64 = value
    return into


def dcgmEntitiesGetLatestValues(handle, entities, fields, flags):
    pairs = [[each.entityGroupId, each.entityId] for each in entities]
    found = _call(handle, "latest", pairs, list(fields), flags)
    values = (dcgm_structs.c_dcgmFieldValue_v2 * len(found))()
    for value, (kind, entity, *sample) in zip(values, found, strict=True):
        value.entityGroupId, value.entityId = kind, entity
        _fill(value, *sample)
    return values


def dcgmGetValuesSince_v2(handle, group, fields, stamp, callback, user_data):
    found, stamp = _call(handle, "since", group.value, fields.value, stamp)
    for kind, entity, *sample in found:
        values = (dcgm_structs.c_dcgmFieldValue_v1 * 1)()
        _fill(values[0], *sample)
        callback(kind, entity, values, 1, id(user_data))  # the address of the object, as a py_object goes through C
    return stamp
