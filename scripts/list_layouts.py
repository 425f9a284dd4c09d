#!/usr/bin/env python
"""Write sodeep/cli/layouts.json, from which `sodeep compare --help` lists the layouts of data without importing torch.

Run it after a change of a layout's text.
"""

import json
from pathlib import Path

import sodeep
from sodeep.tasks import TASKS

PATH = Path(sodeep.__file__).parent / "cli" / "layouts.json"


def listed() -> dict[str, dict[str, str]]:
    """Name and text of every layout, by task."""
    return {
        task: {name: layout.expects for name, layout in kind.layouts.items()}
        for task, kind in TASKS.items()
        if kind.layouts
    }


if __name__ == "__main__":
    PATH.write_text(json.dumps(listed(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
