"""Runs a notebook from its first cell to its last, with the Python that runs this file.

    run_notebook.py NOTEBOOK [--output FILE]

Fails with the traceback of the first cell that fails. --output keeps the notebook with its outputs.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("notebook", type=Path)
    arguments.add_argument("--output", type=Path)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder, "kernels", "weft")
        spec.mkdir(parents=True)
        Path(spec, "kernel.json").write_text(json.dumps({
            "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            "display_name": "weft", "language": "python"}))
        os.environ["JUPYTER_PATH"] = folder
        notebook = nbformat.read(given.notebook, as_version=4)
        NotebookClient(notebook, kernel_name="weft", timeout=120,
                       resources={"metadata": {"path": folder}}).execute()
    if given.output:
        nbformat.write(notebook, given.output)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    print(f"{given.notebook.name}: {len(code)} cells ran")


if __name__ == "__main__":
    main()
