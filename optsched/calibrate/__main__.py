"""Refit the shipped profiles: ``python -m optsched.calibrate DATA [OUT]``."""

from __future__ import annotations

import argparse
from pathlib import Path

from optsched.calibrate.library import render_profile
from optsched.calibrate.shipped import build_profiles
from optsched.model.errors import InputError


def main() -> None:
    """Write a document per profile, by default over the shipped ones."""
    parser = argparse.ArgumentParser(prog="python -m optsched.calibrate", description=__doc__)
    parser.add_argument("data", type=Path, help="folder with the tables of Vidur and Frontier")
    parser.add_argument("out", type=Path, nargs="?", default=Path(__file__).parent / "profiles")
    arguments = parser.parse_args()
    try:
        profiles = build_profiles(arguments.data)
    except InputError as error:
        parser.error(str(error))
    arguments.out.mkdir(parents=True, exist_ok=True)
    for profile in profiles:
        text = render_profile(profile)
        (arguments.out / f"{profile.name}.json").write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
