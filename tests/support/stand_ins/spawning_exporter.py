"""An exporter that runs a program for each scrape, as nvidia_gpu_exporter does, and has a daemon.

    spawning_exporter.py PORT CPU_SECONDS MIB

For each scrape, a process of its own uses CPU_SECONDS and MIB. So does the daemon, whose parent ended, once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

WORK = (
    "import signal, sys, time; held = b'x' * (int(sys.argv[2]) << 20)\n"
    "while time.process_time() < float(sys.argv[1]): pass\n"
    "print('done', flush=True)\n"
    "if sys.argv[3:]: signal.pause()"
)


class Page(BaseHTTPRequestHandler):
    """Answers after a program ran."""

    def do_GET(self) -> None:
        """Run the program and serve one sample."""
        subprocess.run([sys.executable, "-c", WORK, *sys.argv[2:]], check=True, stdout=subprocess.DEVNULL)
        body = b"sample 1\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def main() -> None:
    """Start the daemon, wait until it has done its work, and serve."""
    done, theirs = os.pipe()
    if not os.fork():
        subprocess.Popen([sys.executable, "-c", WORK, *sys.argv[2:], "stay"], stdout=theirs)
        os._exit(0)
    os.wait()
    os.read(done, 4)
    HTTPServer(("127.0.0.1", int(sys.argv[1])), Page).serve_forever()


if __name__ == "__main__":
    main()
