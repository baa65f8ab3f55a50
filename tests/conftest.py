"""Where real data lie, and how much work hypothesis does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "trueup", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("trueup")
torch.set_num_threads(1)

SHARED = Path(os.environ.get("TRUEUP_DATA", Path(__file__).parents[2] / "shared"))
LOGITS = SHARED / "logits"
SETS = sorted(folder.name for folder in LOGITS.iterdir() if folder.is_dir()) if LOGITS.is_dir() else []

needs_logits = pytest.mark.skipif(not SETS, reason="the real logits are not here (TRUEUP_DATA)")
