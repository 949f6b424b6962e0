"""What a worker is handed, made by `plan.job`: plain values, which any node can be sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Job = Mapping[str, Any]
