"""The messages of kubelet's API on every protobuf that the extra allows: `python -m tests.soak.protobuf`.

Each version is installed next to the others and reads the response of a kubelet, in C and in Python. A release that
rejects the messages of `owners/kubelet.py`, or warns, fails here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

RELEASES = ("4.25.0", "4.25.*", "5.*", "6.*", "7.*")
IMPLEMENTATIONS = ("upb", "python")


def read_pods() -> str:
    """Query a kubelet with the protobuf that is first on the path; return its version."""
    import google.protobuf
    from google.protobuf.internal import api_implementation

    from gpu_exporter.model.lookup import LookupFailed
    from gpu_exporter.owners.devices import Allocated, Claimed, Listing
    from gpu_exporter.owners.kubelet import Kubelet
    from tests.support.fakes.kubelet import Claim, FakeKubelet, Given, field, pod

    with tempfile.TemporaryDirectory() as directory:
        kubelet = FakeKubelet(Path(directory) / "kubelet.sock")
        client = Kubelet(kubelet.socket, (), 5.0)
        kubelet.pods = [pod("a", Given("nvidia.com/gpu", ["GPU-1", "GPU-2"])), pod("b", Claim("node", "gpu-0"))]
        kubelet.start()
        try:
            held = tuple(Allocated("team", "a", "main", "nvidia.com/gpu", each) for each in ("GPU-1", "GPU-2"))
            claimed = (Claimed("team", "b", "main", "node", "gpu-0"),)
            assert client.ask() == Listing(held, claimed)
            for dirt in (b"\xff\xff", field(1, field(1, b"\xff\xfe"))):
                kubelet.raw = dirt
                with pytest.raises(LookupFailed, match="no pod-resources reply"):
                    client.ask()
        finally:
            client.close()
            kubelet.stop()
    return f"{google.protobuf.__version__} ({api_implementation.Type()})"


def main() -> None:
    """Run all versions."""
    for release in RELEASES:
        with tempfile.TemporaryDirectory() as directory:
            pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
            subprocess.run([*pip, "--target", directory, f"protobuf=={release}"], check=True)
            for implementation in IMPLEMENTATIONS:
                own = {"PYTHONPATH": directory, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation}
                command = [sys.executable, "-m", "tests.soak.protobuf", "read"]
                said = subprocess.check_output(command, env={**os.environ, **own}, text=True).strip()
                print(f"protobuf {said}: reads kubelet's answer", flush=True)
                assert said.startswith(release.rstrip("*")), said
                assert implementation in said, said


if __name__ == "__main__":
    if sys.argv[1:] == ["read"]:
        print(read_pods())
    else:
        main()
