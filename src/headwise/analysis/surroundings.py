"""What results depend on beside data and code: versions of packages, and the machine."""

import os
import platform
from importlib import metadata

import torch


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that compute results."""
    packages = ("headwise", "torch", "transformers", "tokenizers", "sacrebleu")
    return {"python": platform.python_version()} | {p: metadata.version(p) for p in packages}


def machine() -> str:
    """Returns the machine in words."""
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} × {torch.cuda.get_device_name()}"
    threads = torch.get_num_threads()
    return f"CPU, {os.cpu_count()} cores, {threads} thread{'s' if threads > 1 else ''}"
