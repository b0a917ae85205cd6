"""Measure anew the traces that have stand-ins: ``python -m optsched.traces DATA [OUT]``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from optsched.calibrate.library import file_source
from optsched.model.documents import read_text, write_text
from optsched.model.errors import InputError
from optsched.traces.statistics import measure, render_statistics
from optsched.traces.trace import read_trace

_AZURE = ("Azure/AzurePublicDataset", "b469a113cedc", "CC-BY-4.0")
_TRACES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "azure-conv": (
            "azure_llm_2023/AzureLLMInferenceTrace_conv.csv",
            "Azure's LLM trace of conversations, 2023",
        ),
        "azure-code": (
            "azure_llm_2023/AzureLLMInferenceTrace_code_rows1-5879.csv",
            "Azure's LLM trace of code completion, 2023 (its first two thirds)",
        ),
    }
)
"""Trace → its file and description."""


def main() -> None:
    """Write a document per trace, by default over the shipped ones."""
    parser = argparse.ArgumentParser(prog="python -m optsched.traces", description=__doc__)
    parser.add_argument("data", type=Path, help="folder with the traces")
    parser.add_argument("out", type=Path, nargs="?", default=Path(__file__).parent / "fitted")
    arguments = parser.parse_args()
    try:
        for name, (file, description) in _TRACES.items():
            path = arguments.data / file
            requests = read_trace(read_text(path), "azure").requests
            statistics = measure(name, description, file_source(arguments.data, file, _AZURE), requests)
            write_text(arguments.out / f"{name}.json", render_statistics(statistics))
    except InputError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
