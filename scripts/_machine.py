"""The machine that a script runs on, in words, for what it measures."""

import platform
from pathlib import Path


def cpu() -> str:
    """Number and name of the processor cores."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} cores of {names[0]}" if names else platform.processor() or platform.machine()
