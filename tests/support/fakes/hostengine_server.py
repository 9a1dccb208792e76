"""A fake nv-hostengine: `python -m tests.support.fakes.hostengine_server STATE ADDRESS`.

It answers the fake bindings (`dcgm_bindings`) over TCP or a Unix socket, one JSON line a call. Its GPUs are those of
the JSON file STATE, which is read again when it changes. It behaves as DCGM 4.6.0: `tests/dcgm` runs against both.

Its update loop reads every watched field of a GPU's link at each pass, as that of DCGM does: with `link_seconds` each
takes that long, and with `pass_seconds` each pass takes longer, so that calls that wait for passes are late, and
samples are as old as a pass is long.
`STANDIN_DCGM_CALLS` names a file to which each call is written, with its arguments.
"""

from __future__ import annotations

import itertools
import json
import os
import socketserver
import sys
import threading
import time
from pathlib import Path
from typing import Any

OK, BADPARAM, GENERIC, NOT_SUPPORTED, NO_DATA, NOT_WATCHED = 0, -1, -3, -6, -14, -16
MAX_LIMIT, DUPLICATE_KEY, MODULE_NOT_LOADED = -24, -26, -33
GPU, SWITCH, GPU_I, GPU_CI, LINK, CPU, CPU_CORE = 1, 3, 4, 5, 6, 7, 8
MOST_FIELDS, MOST_FIELD_GROUPS, MOST_GROUPS = 127, 64, 64
XID = 230
SYSTEM = range(1, 6)
BLANKS = {None: 0, "not_found": 1, "not_supported": 2, "no_permission": 3}
INT_BLANK, DOUBLE_BLANK = 0x7FFFFFFFFFFFFFF0, 2.0**47
TEXT_BLANKS = ("<<<NULL>>>", "<<<NOT_FOUND>>>", "<<<NOT_SUPPORTED>>>", "<<<NOT_PERM>>>")
DOUBLES = {155, 157, *range(160, 165), 254, *range(1001, 1009), *range(1013, 1035), 1100, 1110, 1130}
TEXTS = {1, 2, 50, 54}
# The fields of a host engine of this version.
FIRST_4 = {153, 254, *range(334, 347), 1034, *range(1420, 1425), 1501}
FIRST_45 = {1508}
FIRST_46 = set(range(1523, 1534))
# Fields of links with the values of fields of the GPU, and the numbers of those by link.
OF_LINKS = {
    1525: (*range(400, 406), *range(451, 457), 406, 407, 408, 481, 482, 483),
    1527: (*range(420, 426), *range(463, 469), 426, 427, 428, 487, 488, 489),
    1528: (*range(430, 436), *range(469, 475), 436, 437, 438, 491, 492, 493),
    1532: range(1040, 1076, 2),
    1533: range(1041, 1076, 2),
}
LINK_OF = {number: (field, link) for field, numbers in OF_LINKS.items() for link, number in enumerate(numbers)}


def is_profiling(field: int) -> bool:
    """Return whether a field is measured by DCGM's profiling or GPM."""
    return 1001 <= field <= 1099 or field in (1532, 1533)


def kind_of(field: int) -> str:
    """Return DCGM's letter of the field's type."""
    return "s" if field in TEXTS else "d" if field in DOUBLES else "i"


def blank(kind: str, which: int) -> float | str:
    """Return DCGM's value for "none" in a field."""
    return TEXT_BLANKS[which] if kind == "s" else DOUBLE_BLANK + which if kind == "d" else INT_BLANK + which


class Failed(Exception):
    """A return code other than OK."""

    def __init__(self, code: int) -> None:
        super().__init__(str(code))
        self.code = code


class Watched:
    """The watches of an entity's field, with their intervals, and the last sample after the last watch ended."""

    def __init__(self) -> None:
        self.since = time.time()
        self.by: dict[int, float] = {}
        self.frozen: list[Any] | None = None
        self.once = False

    def stamp(self, now: float, longest: float = 0.0) -> float:
        """Return when the last sample was taken, if a pass takes so long."""
        if self.once or not self.by:
            return self.since
        every = max(min(self.by.values()), longest)
        return self.since + (now - self.since) // every * every


class Hostengine:
    """The state of one run, which a restart loses."""

    def __init__(self, state: Path) -> None:
        self._path = state
        self._read_at = 0
        self._state: dict[str, Any] = {}
        self._numbers = itertools.count(100)
        self._groups: dict[int, tuple[int, list[tuple[int, int]]]] = {}
        self._field_groups: dict[int, tuple[int, str, list[int]]] = {}
        self._watched: dict[tuple[int, int, int], Watched] = {}
        self._health: set[int] = set()
        self._xids: dict[int, list[tuple[int, int]]] = {}
        self._wedged_at: float | None = None
        self._delay = 0.0
        self._lock = threading.RLock()

    def do(self, connection: int, call: str, arguments: list[Any]) -> dict[str, Any]:
        """Execute a client's call; return its return code and result."""
        if path := os.environ.get("STANDIN_DCGM_CALLS"):
            with open(path, "a") as calls:
                calls.write(json.dumps([call, *arguments]) + "\n")
        with self._lock:
            self._refresh()
            self._delay = 0.0
            try:
                answer = {"code": OK, "value": getattr(self, f"do_{call}")(connection, *arguments)}
            except Failed as failed:
                answer = {"code": failed.code}
            delay = self._delay
        time.sleep(delay)  # other clients are answered meanwhile
        return answer

    def _pass_seconds(self) -> float:
        """Return how long a pass of the update loop takes."""
        seconds = float(self._state.get("pass_seconds", 0.0))
        if of_link := self._state.get("link_seconds", 0.0):
            links = (key[0] == LINK and key[1] & 0xFF == GPU and watched.by for key, watched in self._watched.items())
            seconds += of_link * sum(map(bool, links))
        return seconds

    def gone(self, connection: int) -> None:
        """Remove a client with its groups and watches; values stay."""
        with self._lock:
            for owned in (self._groups, self._field_groups):
                for number in [number for number, entry in owned.items() if entry[0] == connection]:
                    del owned[number]
            for key, watched in self._watched.items():
                if connection in watched.by:
                    self._end(key, watched, connection)

    def _refresh(self) -> None:
        changed = self._path.stat().st_mtime_ns
        if changed != self._read_at:
            self._read_at, self._state = changed, json.loads(self._path.read_text())
            self._wedged_at = (self._wedged_at or time.time()) if self._state.get("wedged") else None
            for gpu in self._state["gpus"]:
                known = self._xids.setdefault(gpu["id"], [])
                for code in gpu.get("xids", [])[len(known) :]:
                    known.append((self._stamp(), code))

    def _stamp(self) -> int:
        return time.time_ns() // 1000 + next(self._numbers)

    def _gpu(self, number: int) -> dict[str, Any]:
        return next((gpu for gpu in self._state["gpus"] if gpu["id"] == number), {})

    # --- entities ---

    def do_gpus(self, connection: int, supported: bool) -> list[int]:
        return [gpu["id"] for gpu in self._state["gpus"] if gpu.get("supported", True) or not supported]

    def do_attributes(self, connection: int, number: int) -> dict[str, str]:
        gpu = self._gpu(number)
        if not gpu:
            raise Failed(BADPARAM)
        return dict(gpu["attributes"])

    def do_entities(self, connection: int, group: int) -> list[int]:
        if group == GPU:
            return self.do_gpus(connection, True)
        name = {SWITCH: "switches", CPU: "cpus", CPU_CORE: "cores"}.get(group)
        if name is None:
            return []
        if name not in self._state:
            raise Failed(MODULE_NOT_LOADED)
        return [each["id"] for each in self._state[name]]

    def do_cores(self, connection: int) -> list[tuple[int, list[int]]]:
        if "cpus" not in self._state:
            raise Failed(MODULE_NOT_LOADED)
        cores = self._state["cores"]
        return [(cpu["id"], [core["id"] for core in cores if core["cpu"] == cpu["id"]]) for cpu in self._state["cpus"]]

    def do_parts(self, connection: int) -> list[dict[str, Any]]:
        return [part for gpu in self._state["gpus"] if gpu.get("supported", True) for part in gpu.get("parts", [])]

    def do_links(self, connection: int) -> list[list[tuple[int, list[int]]]]:
        if "switches" not in self._state:
            raise Failed(MODULE_NOT_LOADED)
        return [[(each["id"], each.get("links", [])) for each in self._state[name]] for name in ("gpus", "switches")]

    # --- groups ---

    def do_group(self, connection: int, name: str) -> int:
        if len(self._groups) >= MOST_GROUPS:
            raise Failed(MAX_LIMIT)
        number = next(self._numbers)
        self._groups[number] = (connection, [])
        return number

    def do_group_add(self, connection: int, group: int, kind: int, entity: int) -> None:
        if group not in self._groups or (kind == GPU and not self._gpu(entity)):
            raise Failed(BADPARAM)
        self._groups[group][1].append((kind, entity))

    def do_drop_group(self, connection: int, group: int) -> None:
        if self._groups.pop(group, None) is None:
            raise Failed(BADPARAM)

    def do_field_group(self, connection: int, name: str, fields: list[int]) -> int:
        if not fields or len(fields) > MOST_FIELDS or any(field in self._unknown() for field in fields):
            raise Failed(BADPARAM)
        if name in {known for _, known, _ in self._field_groups.values()} | set(self._state.get("taken_names", ())):
            raise Failed(DUPLICATE_KEY)
        if len(self._field_groups) >= MOST_FIELD_GROUPS:
            raise Failed(MAX_LIMIT)
        number = next(self._numbers)
        self._field_groups[number] = (connection, name, fields)
        return number

    def _unknown(self) -> set[int]:
        version = tuple(map(int, self._state.get("version", "4.6.0").split(".")))
        lacks = {(4,): FIRST_4, (4, 5): FIRST_45, (4, 6): FIRST_46}
        older = {field for first, fields in lacks.items() if version < first for field in fields}
        return older | set(self._state.get("unknown_fields", ()))

    def do_drop_field_group(self, connection: int, group: int) -> None:
        if self._field_groups.pop(group, None) is None:
            raise Failed(NO_DATA)

    # --- health, and the NVLinks between GPUs ---

    def do_watch_health(self, connection: int, group: int) -> None:
        if group not in self._groups:
            raise Failed(BADPARAM)
        if "health" not in self._state:
            raise Failed(MODULE_NOT_LOADED)
        self._health.add(group)

    def do_health(self, connection: int, group: int) -> list[list[int]]:
        """Return the health of a group; one that is not watched has no incidents."""
        entities = self._groups[group][1] if group in self._health else []
        return [each for each in self._state["health"] if (each[2], each[3]) in entities]

    def do_peers(self, connection: int) -> list[tuple[int, list[int]]]:
        numbers = self.do_gpus(connection, True)
        states = self._state.get("peers", {})
        return [(a, [5 if a == b else states.get(f"{a}-{b}", 0) for b in numbers]) for a in numbers]

    # --- watches ---

    def do_watch(self, connection: int, group: int, fields: int, seconds: float) -> None:
        time.sleep(self._state.get("watch_seconds", 0))  # an overloaded host engine makes every client wait
        if group not in self._groups or fields not in self._field_groups:
            raise Failed(BADPARAM)
        refused = self._state.get("profiling", OK)
        ids = self._field_groups[fields][2]
        waits = False
        for kind, entity in self._groups[group][1]:
            code = self._gpu(entity).get("profiling", refused) if kind in (GPU, GPU_I) else refused
            mixed = code != OK and any(map(is_profiling, ids))
            for field in ids:
                if mixed and is_profiling(field):
                    continue
                key = (kind, entity, field)
                watched = self._watched.get(key)
                if watched is None or not watched.by:
                    watched = self._watched[key] = Watched()
                    waits = True
                waits = waits or kind == LINK
                watched.by[connection] = seconds
                watched.once = mixed  # plain fields in such a group have one sample, which grows old
            if mixed:
                raise Failed(code)
        if waits:  # until what is new is read, and the loop passes once more at once
            self._delay = 2 * self._pass_seconds()

    def do_unwatch(self, connection: int, group: int, fields: int) -> None:
        if group not in self._groups or fields not in self._field_groups:
            raise Failed(BADPARAM)
        missing = False
        for kind, entity in self._groups[group][1]:
            for field in self._field_groups[fields][2]:
                watched = self._watched.get((kind, entity, field))
                if field in SYSTEM or watched is None or connection not in watched.by:
                    missing = True
                else:
                    self._end((kind, entity, field), watched, connection)
        if missing:
            raise Failed(NOT_WATCHED)

    def _end(self, key: tuple[int, int, int], watched: Watched, by: int) -> None:
        """End a client's watch of a field, whatever groups it has. After the last watch, the last value ages."""
        if len(watched.by) == 1:
            watched.frozen = self._sample(*key)
        del watched.by[by]

    # --- values ---

    def do_latest(self, connection: int, entities: list[list[int]], fields: list[int], flags: int) -> list[list[Any]]:
        if flags:
            return [self._live(kind, entity, field) for kind, entity in entities for field in fields]
        return [
            [kind, entity, field, *self._sample(kind, entity, field)] for kind, entity in entities for field in fields
        ]

    def _live(self, kind: int, entity: int, field: int) -> list[Any]:
        """Return a value without a watch. For a link that cannot be read there are two, and so the call fails."""
        if is_profiling(field) and kind != LINK:
            os._exit(139)  # as after a segmentation fault
        value = self._value(kind, entity, field)
        if field in self._unknown() or (kind == LINK and value is None):
            raise Failed(GENERIC)
        return [kind, entity, field, OK, kind_of(field), value, int(time.time() * 1e6)]

    def _sample(self, kind: int, entity: int, field: int) -> list[Any]:
        """Return status, type, value and time stamp."""
        letter = kind_of(field)
        watched = self._watched.get((kind, entity, field))
        if watched is None:
            return [NOT_WATCHED, letter, blank(letter, 0), 0]
        if watched.frozen is not None:
            return watched.frozen
        if field == XID:
            known = self._xids.get(entity, [])
            if not known:
                return [NO_DATA, letter, blank(letter, 0), 0]
            return [OK, letter, known[-1][1], known[-1][0]]
        now = self._wedged_at or time.time()
        if now - watched.since < self._state.get("first_sample_seconds", 0):
            return [NO_DATA, letter, blank(letter, 0), 0]
        stamp = int(watched.stamp(now, self._pass_seconds()) * 1e6)
        value = self._value(kind, entity, field)
        if is_profiling(field) and now - watched.since < min(watched.by.values()):
            value = None  # the first needs a whole interval
        if isinstance(value, dict):
            return [value["status"], letter, blank(letter, 0), 0]
        if value in BLANKS:
            value = blank(letter, BLANKS[value])
        return [OK, letter, value, stamp]

    def _value(self, kind: int, entity: int, field: int) -> Any:
        name = str(field)
        if kind == GPU:
            gpu = self._gpu(entity)
            if field in SYSTEM:
                return self._state.get("system", {}).get(name)
            if not gpu.get("supported", True) or gpu.get("lost"):
                return None
            if field in LINK_OF:
                of_link, link = LINK_OF[field]
                there = link < len(gpu.get("links", ())) and gpu["links"][link]
                return gpu.get("link_fields", {}).get(str(of_link)) if there else "not_supported"
            return gpu["fields"].get(name, "not_supported")
        if kind == LINK:
            owner, link = entity >> 24, entity >> 8 & 0xFFFF
            if entity & 0xFF == SWITCH:
                return self._of("switches", owner).get("link_fields", {}).get(name)
            links = self._gpu(owner).get("links", [])
            there = link < len(links) and links[link]
            fields = {**self._gpu(owner).get("link_fields", {}), "1508": int(there and links[link] == 3)}
            return fields.get(name) if there else None
        if kind in (GPU_I, GPU_CI):
            part = next((part for part in self.do_parts(0) if part["entity"] == [kind, entity]), {})
            return part.get("fields", {}).get(name, "not_supported" if part else None)
        name_of = {SWITCH: "switches", CPU: "cpus", CPU_CORE: "cores"}[kind]
        return self._of(name_of, entity).get("fields", {}).get(name)

    def _of(self, name: str, number: int) -> dict[str, Any]:
        return next((each for each in self._state.get(name, []) if each["id"] == number), {})

    def do_since(self, connection: int, group: int, fields: int, stamp: int) -> list[Any]:
        if group not in self._groups or fields not in self._field_groups:
            raise Failed(BADPARAM)
        found: list[list[Any]] = [
            [kind, entity, XID, OK, "i", code, at]
            for kind, entity in self._groups[group][1]
            if (kind, entity, XID) in self._watched
            for at, code in self._xids.get(entity, [])
            if at >= stamp
        ]
        return [found, max((entry[-1] + 1 for entry in found), default=stamp)]


class Connection(socketserver.StreamRequestHandler):
    """One client."""

    def handle(self) -> None:
        engine: Hostengine = self.server.engine  # type: ignore[attr-defined]
        number = id(self)
        try:
            for line in self.rfile:
                call, *arguments = json.loads(line)
                self.wfile.write(json.dumps(engine.do(number, call, arguments)).encode() + b"\n")
        except OSError:
            pass
        finally:
            engine.gone(number)


class Tcp(socketserver.ThreadingTCPServer):
    """On a port."""

    daemon_threads = allow_reuse_address = True


class Unix(socketserver.ThreadingUnixStreamServer):
    """On a Unix socket."""

    daemon_threads = True


def main(state: str, address: str) -> None:
    """Serve until killed."""
    if address.startswith("/"):
        Path(address).unlink(missing_ok=True)
        server: socketserver.BaseServer = Unix(address, Connection)
    else:
        host, _, port = address.rpartition(":")
        server = Tcp((host, int(port)), Connection)
    server.engine = Hostengine(Path(state))  # type: ignore[attr-defined]
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
