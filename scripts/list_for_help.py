#!/usr/bin/env python
"""Write what `sodeep compare --help` lists without importing torch: sodeep/cli/layouts.json and sodeep/cli/losses.json.

Run it after a change of a layout's text, or of the names in `sodeep.comparison.losses_by_name`.
"""

import json
from pathlib import Path
from typing import Any

from sodeep.comparison.losses_by_name import LOSSES, PEERS, RANK_LOSSES, RANKS
from sodeep.tasks import TASKS


def layouts() -> dict[str, dict[str, str]]:
    """Name and text of every layout, by task."""
    return {
        task: {name: layout.expects for name, layout in task_class.layouts.items()}
        for task, task_class in TASKS.items()
        if task_class.layouts
    }


def losses() -> dict[str, Any]:
    """Names of all losses by the tasks that take them, and the rank functions of those written LOSS:RANK."""
    specs = {
        **LOSSES,
        **{f"{name}:RANK": spec for name, spec in RANK_LOSSES.items()},
        **{f"peer:{name}": spec for name, (_, spec) in PEERS.items()},
    }
    by_task: dict[str, list[str]] = {}
    for name, spec in specs.items():
        tasks = [
            task
            for task, task_class in TASKS.items()
            if spec.signatures <= {*task_class.accepts} and (not spec.method or spec.method in task_class.methods)
        ]
        by_task.setdefault(", ".join(tasks), []).append(name)
    return {"losses": by_task, "ranks": list(RANKS)}


if __name__ == "__main__":
    for name, listed in (("layouts", layouts()), ("losses", losses())):
        path = Path(__file__).parents[1] / "sodeep" / "cli" / f"{name}.json"
        path.write_text(json.dumps(listed, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
