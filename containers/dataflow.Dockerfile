# Dataflow's workers and the launcher of its Flex Template, in one image. It holds all that a worker needs, so that a
# worker asks no package index. Build it in the root of a checkout:
#
#   docker build -f containers/dataflow.Dockerfile -t IMAGE .
#
# BEAM must be the version of Apache Beam that starts the job. LAUNCHER is the release of Google's launcher.
ARG BEAM=2.77.0
ARG LAUNCHER=latest
FROM gcr.io/dataflow-templates-base/python311-template-launcher-base:${LAUNCHER} AS launcher

FROM apache/beam_python3.11_sdk:${BEAM}

ARG BEAM
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY . /source
RUN pip install --no-cache-dir '/source[dataflow]' "apache-beam[gcp]==${BEAM}" \
    && pip check \
    && python -c "from tfpipe.native import library; import beam_jobs.shards.write_shard; library.load()"
COPY --from=launcher /opt/google/dataflow/python_template_launcher /opt/google/dataflow/python_template_launcher
COPY containers/flex_template.py containers/flex_template.json /template/
ENV FLEX_TEMPLATE_PYTHON_PY_FILE=/template/flex_template.py
ENTRYPOINT ["/opt/apache/beam/boot"]
