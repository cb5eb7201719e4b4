# Reinforce-Ada with apex and the Transformer Engine of NVIDIA's PyTorch image: `docker/build.sh pytorch`.
# Its base is what NeMo-RL's own docker/Dockerfile.ngc_pytorch makes of nvcr.io/nvidia/pytorch:25.06-py3 (build.sh builds
# it first: vLLM from source, about an hour). NeMo-RL calls that file work in progress.
FROM nemo-rl-pytorch:v0.7.0-25.06

ENV NEMO_RL_HOME=/opt/nemo-rl

# What this image is for: apex's fused weight-gradient kernel (policy.megatron_cfg.gradient_accumulation_fusion).
RUN /opt/nemo_rl_venv/bin/python -c "from importlib.util import find_spec as f; import sys; \
sys.exit([m for m in ('apex', 'fused_weight_gradient_mlp_cuda', 'transformer_engine') if f(m) is None] or 0)"

WORKDIR /opt/nemo-ada
COPY pyproject.toml LICENSE ./
COPY nemo_ada ./nemo_ada
COPY configs ./configs
RUN uv pip freeze --python /opt/nemo_rl_venv/bin/python --exclude-editable > /tmp/there.txt \
    && uv pip install --no-cache --python /opt/nemo_rl_venv/bin/python --constraint /tmp/there.txt ".[nemo]" \
    && rm /tmp/there.txt \
    && /opt/nemo_rl_venv/bin/nemo-ada --help > /dev/null

WORKDIR /workspace
