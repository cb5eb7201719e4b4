# The embedded back end on a CPU: `docker/build.sh cpu`, then `docker/run.sh cpu nemo-ada train configs/cpu/mini_sudoku.yaml`.
# docker/build.sh puts the folder PIP_FIND_LINKS in place of this empty stage.
ARG PYTHON_VERSION=3.11.13-slim-bookworm
FROM scratch AS wheels

FROM python:${PYTHON_VERSION}

# A site's own certificate authority and package index: docker/build.sh gives them where CA_FILE and PIP_INDEX_URL are set.
ARG PIP_INDEX_URL
ARG UV_DEFAULT_INDEX=$PIP_INDEX_URL
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
    PIP_CERT=/etc/ssl/certs/ca-certificates.crt
RUN --mount=type=secret,id=ca,target=/usr/local/share/ca-certificates/site.crt,mode=0444 update-ca-certificates

# vLLM's CPU build compiles small kernels at run time.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ libnuma1 make \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 ada

WORKDIR /opt/nemo-ada
COPY pyproject.toml setup.py README.md LICENSE Makefile ./
COPY .ci ./.ci
COPY nemo_ada ./nemo_ada
COPY configs ./configs
COPY recipes ./recipes
# With bytecode, because a read-only root keeps none: each process of each command would compile all its imports again.
ENV UV_NO_CACHE=1 \
    UV_COMPILE_BYTECODE=1 \
    PIP_NO_CACHE_DIR=1 \
    PATH=/opt/nemo-ada/.venv/bin:$PATH
RUN --mount=type=bind,from=wheels,target=/tmp/wheels \
    PIP_FIND_LINKS=/tmp/wheels make install && chown -R 1000:1000 /opt/nemo-ada

USER 1000:1000
CMD ["nemo-ada", "--help"]
