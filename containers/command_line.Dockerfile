# The command line. Build it in the root of a checkout:
#
#   docker build -f containers/command_line.Dockerfile -t tfpipe .
#   docker run --rm -v "$PWD:/data" tfpipe shard photos flowers
FROM python:3.11-slim-bookworm AS build

SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/tfpipe
ENV PATH=/opt/tfpipe/bin:$PATH
WORKDIR /source
COPY . .
# hadolint ignore=DL3013
RUN pip install --no-cache-dir '.[tensorflow,dataflow,report]'

FROM python:3.11-slim-bookworm

RUN useradd --create-home --uid 10001 tfpipe
COPY --from=build /opt/tfpipe /opt/tfpipe
ENV PATH=/opt/tfpipe/bin:$PATH TF_CPP_MIN_LOG_LEVEL=3
RUN tfpipe --version
USER 10001
WORKDIR /data
ENTRYPOINT ["tfpipe"]
CMD ["--help"]
