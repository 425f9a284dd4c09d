"""The command line, ``sodeep``.

Modules that import torch are imported when a command runs, so that ``--help`` and ``--version`` answer at once.
"""

from sodeep.cli import sorters
from sodeep.cli.compare import compare as _compare
from sodeep.cli.group import main as main

main.add_command(_compare)
for _command in sorters.COMMANDS:
    main.add_command(_command)
