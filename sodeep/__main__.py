"""``python -m sodeep`` is the command ``sodeep``."""

from sodeep.cli.group import main

if __name__ == "__main__":
    main(prog_name="sodeep")
