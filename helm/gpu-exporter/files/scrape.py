"""Runs in `helm test`: scrapes one pod, and retries for a minute."""

import os
import socket
import sys
import time
import urllib.request

host, port = os.environ["HOST"], int(os.environ["PORT"])
end = time.monotonic() + float(os.environ.get("PATIENCE", "60"))
while True:
    try:
        if os.environ.get("PORT_ONLY"):
            socket.create_connection((host, port), 5).close()
            print(f"{host}:{port} is open")
            break
        with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=5) as answer:
            page = answer.read().decode()
        gpus = [line for line in page.splitlines() if line.startswith("gpu_up{")]
        if "gpu_exporter_build_info" not in page:
            sys.exit(f"{host}:{port} is not a gpu-exporter")
        print("\n".join(gpus) or "it answers, but has no GPUs; run: kubectl exec POD -- gpu-exporter doctor")
        break
    except OSError as error:
        if time.monotonic() > end:
            sys.exit(f"{host}:{port} does not answer: {error}")
        time.sleep(2)
