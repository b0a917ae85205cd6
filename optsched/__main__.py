"""``python -m optsched``: the command, with this Python."""

from __future__ import annotations

from optsched.cli import main

if __name__ == "__main__":
    main()
