"""Which rented machine has which GPU: a small table, and nothing is looked up.

Prices are none of it: they change by the hour and by the region, and the user states them.
"""

from __future__ import annotations

from typing import NamedTuple


class Machine(NamedTuple):
    """One instance type. `accelerator` is what GCP attaches where the type itself has no GPU."""

    instance: str
    cpus: int
    gpus: int
    memory_gib: int
    accelerator: str | None = None


# https://aws.amazon.com/ec2/instance-types/ (accelerated computing): the smallest machine of each
# GPU, since a trial needs one. A100 is let by eight only.
AWS = {
    "a10g": Machine("g5.xlarge", cpus=4, gpus=1, memory_gib=16),
    "a100": Machine("p4d.24xlarge", cpus=96, gpus=8, memory_gib=1152),
    "h100": Machine("p5.4xlarge", cpus=16, gpus=1, memory_gib=256),
    "l4": Machine("g6.xlarge", cpus=4, gpus=1, memory_gib=16),
    "l40s": Machine("g6e.xlarge", cpus=4, gpus=1, memory_gib=32),
    "t4": Machine("g4dn.xlarge", cpus=4, gpus=1, memory_gib=16),
}

# https://cloud.google.com/compute/docs/gpus (a T4 is attached to an n1 machine, the others are
# part of theirs)
GCP = {
    "a100": Machine("a2-highgpu-1g", cpus=12, gpus=1, memory_gib=85),
    "h100": Machine("a3-highgpu-1g", cpus=26, gpus=1, memory_gib=234),
    "l4": Machine("g2-standard-4", cpus=4, gpus=1, memory_gib=16),
    "t4": Machine("n1-standard-4", cpus=4, gpus=1, memory_gib=15, accelerator="nvidia-tesla-t4"),
}

MACHINES = {"aws": AWS, "gcp": GCP}

# What would cost money and fail: said by name, since many clouds still let them.
REFUSED = {
    "v100": "torch's wheels are built with CUDA 13, which has no code for Volta",
    "p100": "torch's wheels are built with CUDA 13, which has no code for Pascal",
    "k80": "torch's wheels are built with CUDA 13, which has no code for Kepler",
}
