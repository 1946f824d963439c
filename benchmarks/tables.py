"""Reading a table with a million rows: CPU time and memory, as a ratio to another version of probmcl.

    python benchmarks/tables.py --against CHECKOUT [--rows 1000000] [--folder DIR]

Both versions read the same table in processes of their own, in turn, three times each. The folder has one empty file
per row; writing them takes a minute, and a folder that exists is used again.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

LABELS = ("cat", "dog", "emu", "fox", "hen", "owl", "pig", "rat")
PER_FOLDER = 1000

READ = """
import json, resource, sys, time
from probmcl.readers import read
start = time.process_time()
records = read(sys.argv[1], seed=None)
seconds = time.process_time() - start
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
labels = int(records.states.present().nnz)
print(json.dumps({"seconds": seconds, "MB": memory, "images": len(records), "labels": labels}))
"""


def write(folder: Path, rows: int) -> Path:
    """Write a table with `rows` rows and an empty file for each, unless the table exists."""
    table = folder / "labels.csv"
    if table.exists():
        return table
    lines = ["filename,labels,split"]
    for row in range(rows):
        name = f"{row // PER_FOLDER:04d}/{row:07d}.jpg"
        if row % PER_FOLDER == 0:
            (folder / name).parent.mkdir(parents=True)
        os.close(os.open(folder / name, os.O_CREAT))
        labels = "|".join(label for bit, label in enumerate(LABELS) if (row * 2654435761 >> bit) & 1)
        lines.append(f"{name},{labels},{('train', 'val', 'test')[row % 3]}")
    table.write_text("\n".join(lines))
    return table


def measure(source: Path, table: Path) -> dict[str, float]:
    """Read the table in a new process with the version in a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(source / "src")}
    command = [sys.executable, "-c", READ, str(table)]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    result: dict[str, float] = json.loads(output.splitlines()[-1])
    return result


def main() -> None:
    """Compare this checkout with another one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, required=True, help="checkout of the version to compare with")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="folder for the table and its files (default: a temporary folder)")
    arguments = parser.parse_args()
    with TemporaryDirectory() as temporary:
        table = write(arguments.folder or Path(temporary), arguments.rows)
        here = Path(__file__).parents[1]
        runs = [(measure(here, table), measure(arguments.against.resolve(), table)) for _ in range(3)]
    for new, old in runs:
        if (new["images"], new["labels"]) != (old["images"], old["labels"]):
            raise SystemExit(f"the versions read different labels: {new} and {old}")
    for key in ("seconds", "MB"):
        now, before = (median(run[version][key] for run in runs) for version in (0, 1))
        print(f"{key}: {now:.1f}, before {before:.1f}, ratio {now / before:.2f}")


if __name__ == "__main__":
    main()
