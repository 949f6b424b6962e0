# Not built: checked only by hadolint, and by its commands in an empty folder.
# lp-sweep with its source and tests, for CPUs, or for NVIDIA's GPUs with TORCH=cu130:
#
#   docker build -t lp-sweep .
#   docker build -t lp-sweep:cuda --build-arg TORCH=cu130 .
#   docker run --rm lp-sweep make quickstart
#   docker run --rm lp-sweep make test
#   docker run --rm --gpus all -v "$PWD:/sweep" -w /sweep lp-sweep:cuda lp-sweep run sweep.yaml
FROM python:3.11-slim

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends git make \
    && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir uv==0.13.9

WORKDIR /lp-sweep
COPY . .
ARG TORCH=cpu
RUN uv venv .venv \
    && uv pip install --no-cache --python .venv --torch-backend "$TORCH" -c constraints.txt -e '.[dev,cluster]' \
    && touch .venv/.package .venv/.ready
ENV PATH="/lp-sweep/.venv/bin:$PATH"
CMD ["lp-sweep", "--help"]
