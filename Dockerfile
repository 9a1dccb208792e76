# docker build --tag gpu-exporter .
#   --target dcgm-exporter         replaces dcgm-exporter's image: runs as root, and has the command dcgm-exporter
#   --build-arg EXTRAS=            leaves out gRPC, which --kubernetes needs
#   --platform linux/amd64,linux/arm64    builds for both; nothing is compiled
# The base image is pinned; Dependabot updates both lines.
FROM python:3.12-slim@sha256:229a2c5bfa27522db7815ea81f9bed70af17ccb9de9fc7ad142b1877b5830d36 AS build
WORKDIR /src
# Of the commit, so that two builds of it have the same bytes: `make image` sets it, and the release workflow.
ARG SOURCE_DATE_EPOCH=315532800
COPY pyproject.toml setup.cfg setup.py README.md LICENSE ./
COPY requirements requirements
COPY gpu_exporter gpu_exporter
# What gpu_exporter/bundled links to.
COPY compose.yaml ./
COPY dashboards dashboards
COPY helm helm
COPY deploy deploy
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .
ARG EXTRAS=kubernetes
# From locks with hashes, which `make lock` writes. Compiled modules do not depend on the times of files.
RUN python -m venv --without-pip /opt/gpu-exporter \
 && set -- --requirement requirements/image.txt \
 && for extra in $(echo "${EXTRAS}" | tr ',' ' '); do \
      set -- "$@" --requirement "requirements/image-${extra}.txt"; \
    done \
 && python -m pip --python /opt/gpu-exporter/bin/python install --no-cache-dir --no-compile --only-binary :all: \
    --require-hashes "$@" \
 && python -m pip --python /opt/gpu-exporter/bin/python install --no-cache-dir --no-compile --no-deps --no-index \
    /wheels/*.whl \
 && PYTHONHASHSEED=0 python -m compileall -q --invalidation-mode unchecked-hash /opt/gpu-exporter/lib
COPY deploy/healthcheck.py deploy/dcgm-exporter/dcgm-exporter deploy/dcgm-exporter/*.csv ./
RUN install -m 644 healthcheck.py /opt/gpu-exporter/ \
 && install -m 755 -D dcgm-exporter /opt/dcgm-exporter/dcgm-exporter \
 && install -m 644 -D -t /opt/dcgm-exporter/counters ./*.csv \
 && find /opt/gpu-exporter /opt/dcgm-exporter -depth -exec touch --no-dereference --date "@${SOURCE_DATE_EPOCH}" {} +

FROM python:3.12-slim@sha256:229a2c5bfa27522db7815ea81f9bed70af17ccb9de9fc7ad142b1877b5830d36 AS base
ARG VERSION=unknown
ARG REVISION=unknown
ARG SOURCE=
LABEL org.opencontainers.image.title="gpu-exporter" \
      org.opencontainers.image.description="Prometheus exporter that shows why NVIDIA GPUs are slow, broken or wasted" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/gpu-exporter /opt/gpu-exporter
# The place where manifests of dcgm-exporter expect them.
COPY --from=build /opt/dcgm-exporter/counters /etc/dcgm-exporter
# The NVIDIA runtime mounts NVML, the only part of the driver that is needed.
ENV PATH=/opt/gpu-exporter/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility
EXPOSE 9400
# Checks the process, not the GPUs: a restart does not repair a GPU. Works with any --address, TLS and passwords.
HEALTHCHECK --interval=15s --timeout=5s --start-period=10s --retries=8 \
  CMD ["python", "/opt/gpu-exporter/healthcheck.py"]

# Pod specs for dcgm-exporter expect its image to run as root: kubelet's socket is closed to other users.
FROM base AS dcgm-exporter
COPY --from=build /opt/dcgm-exporter/dcgm-exporter /usr/bin/
USER 0:0
ENTRYPOINT ["dcgm-exporter"]

FROM base AS gpu-exporter
USER 65534:65534
ENTRYPOINT ["gpu-exporter"]
CMD ["serve"]
