# docker build --tag gpu-exporter .
#   --target dcgm-exporter         replaces dcgm-exporter's image: runs as root, and has the command dcgm-exporter
#   --build-arg EXTRAS=            leaves out gRPC, which --kubernetes needs
#   --platform linux/amd64,linux/arm64    builds for both; nothing is compiled
# The base image is pinned; Dependabot updates both lines.
FROM python:3.12-slim@sha256:229a2c5bfa27522db7815ea81f9bed70af17ccb9de9fc7ad142b1877b5830d36 AS build
WORKDIR /src
COPY pyproject.toml setup.cfg setup.py README.md LICENSE ./
COPY gpu_exporter gpu_exporter
# What gpu_exporter/bundled links to.
COPY compose.yaml ./
COPY dashboards dashboards
COPY helm helm
COPY deploy deploy
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .
ARG EXTRAS=kubernetes
RUN python -m venv --without-pip /opt/gpu-exporter \
 && wheel="$(ls /wheels/*.whl)" \
 && python -m pip --python /opt/gpu-exporter/bin/python install --no-cache-dir --only-binary :all: \
    "${wheel}${EXTRAS:+[${EXTRAS}]}"
COPY deploy/healthcheck.py deploy/dcgm-exporter/dcgm-exporter ./
RUN install -m 644 healthcheck.py /opt/gpu-exporter/ \
 && install -m 755 -D dcgm-exporter /opt/dcgm-exporter/dcgm-exporter

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
COPY --chmod=644 deploy/dcgm-exporter/*.csv /etc/dcgm-exporter/
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
