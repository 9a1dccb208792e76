"""A job whose profiler speaks Kineto's IPC as libkineto does, and then behaves well or badly.

Run as a program: `kineto_job.py BEHAVIOUR TRACE`. The environment is that of libkineto: KINETO_USE_DAEMON,
KINETO_IPC_SOCKET_DIR. It prints `ready` after its first poll, and each configuration that it receives.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import sys
import time
import uuid
from pathlib import Path

HEAD = struct.Struct("=Q32s")
ACTIVITIES = 2
# libkineto polls every 5 s, and waits for an answer for 90 ms.
POLL_SECONDS, ANSWER_SECONDS = 0.3, 0.09
OTHER_USER = 65534
HUGE = 2 << 30


def address(folder: str, name: str) -> str:
    """Return the address of an endpoint, as `Endpoint.h` makes it."""
    return f"{folder}/{name}" if folder else f"\0{name}\0"


class Client:
    """The client of libkineto: `IpcFabricConfigClient.cpp` and `FabricManager.h`."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        name = address(folder, f"dynoconfigclient{uuid.uuid4()}")
        self._socket.bind(name)
        if folder:
            os.chmod(name, 0o666)

    def send(self, datagram: bytes) -> bool:
        """Send a datagram to the daemon; return whether it was sent. A full queue is tried again ten times."""
        pause = 0.01
        for _ in range(10):
            try:
                self._socket.sendto(datagram, socket.MSG_DONTWAIT, address(self._folder, "dynolog"))
            except BlockingIOError:
                time.sleep(pause)
                pause *= 2
            except OSError:
                return False
            else:
                return True
        return False

    def poll(self, *, accepts: bool) -> str:
        """Ask for a configuration. Ends the process, as libkineto does, if the daemon's name is not as expected."""
        pids = (os.getpid(), os.getppid(), 1)
        body = struct.pack(f"=iiq{len(pids)}i", ACTIVITIES if accepts else 0, len(pids), 0, *pids)
        if not self.send(HEAD.pack(len(body), b"req") + body):
            return ""
        self._socket.settimeout(ANSWER_SECONDS)
        try:
            answer, sender = self._socket.recvfrom(1 << 16)
        except TimeoutError:
            return ""
        expected = f"{self._folder}/" if self._folder else b"\0"
        if not sender.startswith(expected):
            os.abort()
        size, _ = HEAD.unpack_from(answer)
        return answer[HEAD.size : HEAD.size + size].decode()


def write(behaviour: str, trace: str, path: Path) -> None:
    """Write the trace to a temporary file, which then gets its name, or misbehave."""
    temporary = Path(f"{path}.tmp")
    if behaviour == "dies":
        temporary.write_bytes(Path(trace).read_bytes()[:1000])
        os.kill(os.getpid(), signal.SIGKILL)
    elif behaviour == "garbage":
        temporary.write_bytes(os.urandom(1 << 16))
    elif behaviour == "link":
        temporary.symlink_to(trace)
    elif behaviour == "device":
        os.mkfifo(temporary)
    elif behaviour == "huge":
        with temporary.open("wb") as file:
            file.truncate(HUGE)
    elif behaviour == "linked":
        shutil.copy(trace, temporary)
        os.link(temporary, f"{path}.other")
    elif behaviour == "other_user":
        shutil.copy(trace, temporary)
        os.chown(temporary, OTHER_USER, OTHER_USER)
    elif behaviour == "writes_nothing":
        return
    else:
        shutil.copy(trace, temporary)
    temporary.rename(path)


def obey(text: str, behaviour: str, trace: str) -> None:
    """Do what a configuration requests."""
    options = dict(line.split("=", 1) for line in text.splitlines())
    start = int(options["PROFILE_START_TIME"]) / 1000
    print(f"recording {start:.3f} {options['PROFILE_WITH_STACK']}", flush=True)
    time.sleep(max(0.0, start - time.time()) if start else 0.1)
    requested = Path(options["ACTIVITIES_LOG_FILE"])
    write(behaviour, trace, requested.with_name(f"{requested.stem}_{os.getpid()}.json"))


def main() -> None:
    behaviour, trace = sys.argv[1:]
    client = Client(os.environ.get("KINETO_IPC_SOCKET_DIR", ""))
    print("ready", flush=True)
    while True:
        if behaviour == "sends_garbage":
            client.send(os.urandom(200))
        elif behaviour != "silent" and (text := client.poll(accepts=behaviour != "busy")):
            obey(text, behaviour, trace)
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    main()
