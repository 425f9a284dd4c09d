"""Which modules of the package pytest reads for their examples: not those of libraries that are not installed."""

import importlib.util
from pathlib import Path

collect_ignore = [
    str(path)
    for path in (Path(__file__).parent / "sodeep/adapters").glob("*.py")
    if path.stem != "__init__" and importlib.util.find_spec(path.stem) is None
]
