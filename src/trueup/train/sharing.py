"""Several trainings on one GPU at a time.

Left to themselves, processes take turns on a GPU, and side by side they gain nothing. Under NVIDIA's Multi-Process
Service their kernels run at the same time: three small nets side by side train 1.4 times faster in total. What they
share they also lose together, see ``run_all``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
QUIT, PATIENCE = b"quit -t 5\n", 30
"""With a time after which the service no longer waits for its processes: one may hang, see ``run_all``. And so many
seconds we wait for the service itself."""


@contextmanager
def shared_gpu() -> Iterator[bool]:
    """Within, child processes share the GPU through a service of their own; whether there is one.

    A service that the user has set up, and a machine that has none, are left as they are.
    """
    if PIPES in os.environ or shutil.which(CONTROL) is None:
        yield PIPES in os.environ
        return
    with tempfile.TemporaryDirectory(prefix="trueup-mps-", ignore_cleanup_errors=True) as folder:
        ours = {PIPES: folder, LOGS: folder}
        started = subprocess.run([CONTROL, "-d"], env=os.environ | ours, capture_output=True, check=False)
        if started.returncode:
            yield False
            return
        os.environ.update(ours)
        try:
            yield True
        finally:
            for name in ours:
                del os.environ[name]
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    [CONTROL], input=QUIT, env=os.environ | ours, capture_output=True, check=False, timeout=PATIENCE
                )
