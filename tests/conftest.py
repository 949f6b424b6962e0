"""Settings of every test: no hub, no user's own settings, few threads; and a store of each
kind for the tests of what a store promises."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from lp_sweep.storage.store import Store
from tests.support.stores import mounted, place_of

# kept where the shell says not to, else every process of a run compiles all tests and modules again
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # two pytest workers share the cores
    os.environ.setdefault(name, "1")
OURS = ("LP_SWEEP_TEST_", "LP_SWEEP_DATA_DIR", "LP_SWEEP_CLUSTER_PYTHON", "LP_SWEEP_HOSTS")
for name in [*os.environ]:  # a user's options, as every option has its variable
    if name.startswith("LP_SWEEP_") and not name.startswith(OURS):
        del os.environ[name]
os.environ["LP_SWEEP_EVEN_IF_NOT_LEARNED"] = "1"  # many worlds are too small to learn from
os.environ.pop("RAY_ADDRESS", None)
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_REGION"):
    os.environ.pop(name, None)
if "LP_SWEEP_TEST_S3" not in os.environ:  # see s3server.py
    os.environ |= {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}

os.fsync = lambda _: None  # no store of a test has to outlive the machine's power
# every day few examples and always the same; `make test-all` asks for the other
settings.register_profile(
    "everyday",
    max_examples=20,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
settings.register_profile(
    "long", settings.get_profile("everyday"), max_examples=300, derandomize=False
)
settings.load_profile("everyday")


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from tests.support import s3server  # loads boto3, which few tests need

    with s3server.endpoint(tmp_path_factory.mktemp("s3") / "server.log") as endpoint:
        yield endpoint


@pytest.fixture
def s3_location(s3_endpoint: str) -> Iterator[str]:
    """A store's location in a bucket, for this test alone; nothing is there yet."""
    from tests.support import s3server

    with s3server.fresh_prefix(s3_endpoint) as location:
        yield location


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store", create=True)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sweep file of a toy world: a small BERT and rows that it can learn."""
    from tests.support.toyworld import save_world  # loads torch

    return save_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.slow)])
def location(request: pytest.FixtureRequest) -> str:
    """Where a store can be made: a test that takes this runs over every kind of store. Every day
    what a store promises is shown of each kind: `test_store_contract` has its own."""
    return place_of(request)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB, for stores that are full or read-only."""
    with mounted(tmp_path / "disk", "1m") as disk:
        yield disk
