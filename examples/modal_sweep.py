# Not run: checked only by `modal run --help` of Modal 1.6, which makes the app and starts nothing.
"""A sweep on Modal: see docs/cluster.md. Each container is a run of its own on one GPU, and all
share the store, a bucket. Edit the lines with CHANGE.

modal secret create my-bucket AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=... AWS_REGION=us-west-2
modal run --detach examples/modal_sweep.py --gpus 4
"""

import subprocess

import modal

COMMAND = "lp-sweep run /sweep/sweep.yaml --inline --max-hours 22"
STORE = "s3://CHANGE-bucket/lp-sweep"

image = (
    modal.Image.debian_slim(python_version="3.11")
    .add_local_dir("dist", "/dist", copy=True)  # the wheel: python -m build --wheel --outdir dist .
    .run_commands("pip install /dist/*.whl")
    .env({"LP_SWEEP_STORE": STORE})
    .add_local_dir("my-sweep", "/sweep")  # CHANGE: the folder of sweep.yaml, your model and data
)
app = modal.App("lp-sweep", image=image)


# A container that Modal takes away, and a run that ends with another exit code than 0, is started
# again: finished trials are in the store.
@app.function(
    gpu="A10G", timeout=24 * 3600, retries=3, secrets=[modal.Secret.from_name("my-bucket")]
)
def run(number: int) -> None:
    subprocess.run(COMMAND.split(), check=True)


@app.local_entrypoint()
def main(gpus: int = 1) -> None:
    list(run.map(range(gpus)))
