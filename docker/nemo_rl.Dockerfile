# Reinforce-Ada on NVIDIA's NeMo-RL image: `docker/build.sh nemo_rl`, or `nemo_rl-v0.8.0`. Context: the project's root.
# Both have NeMo-RL in /opt/nemo-rl and its environment in /opt/nemo_rl_venv (v0.8.0's read in main's Dockerfile of August).
ARG NEMO_RL_VERSION=v0.7.0
FROM nvcr.io/nvidia/nemo-rl:${NEMO_RL_VERSION}

# A site's own certificate authority and package index: docker/build.sh gives them where CA_FILE and PIP_INDEX_URL are set.
ARG PIP_INDEX_URL
ARG UV_DEFAULT_INDEX=$PIP_INDEX_URL
ENV NEMO_RL_HOME=/opt/nemo-rl \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
RUN --mount=type=secret,id=ca,target=/usr/local/share/ca-certificates/site.crt,mode=0444 update-ca-certificates

WORKDIR /opt/nemo-ada
COPY pyproject.toml setup.py README.md LICENSE ./
COPY nemo_ada ./nemo_ada
COPY configs ./configs

# Into the driver's environment, without replacing anything that is in it.
RUN uv pip freeze --python /opt/nemo_rl_venv/bin/python --exclude-editable > /tmp/there.txt \
    && uv pip install --no-cache --python /opt/nemo_rl_venv/bin/python --constraint /tmp/there.txt ".[nemo]" \
    && rm /tmp/there.txt \
    && /opt/nemo_rl_venv/bin/nemo-ada --help > /dev/null

# run.sh and Apptainer start it as the caller. NVIDIA's image keeps uv, Python and linked packages below /root, which
# only root may enter; the files themselves are readable.
RUN chmod a+x /root /root/.local /root/.cache \
    && setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=/tmp /opt/nemo_rl_venv/bin/nemo-ada --help > /dev/null
WORKDIR /workspace
