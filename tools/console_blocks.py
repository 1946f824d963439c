"""Run the commands in the documentation and update the output shown on its pages.

    python tools/console_blocks.py PAGE…

A block of commands (```console) or of Python follows one of two comments:

    <!-- run -->                 run, with the other such blocks of the page, in one temporary folder
    <!-- not run: REASON -->     shown only
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>run|not run: .+?) -->\n)?```(?P<language>console|python)\n(?P<text>.*?)^```$", re.M | re.S
)
PROMPT = "$ "

Runner = Callable[[Sequence[str], Path], str]
"""Runs a command in a folder and returns its output."""

MACHINE_DEPENDENT = {
    r"\d{4}-\d\d-\d\d": "DATE",
    r"\b\d[\d,.]* ?(?:s|ms|seconds?|min|minutes?|h|hours?)\b": "TIME",
    r"\b\d[\d,]* images/s": "SPEED",
    r"[+−-]?\d+\.\d+": "NUMBER",  # scores differ in the last digits, and in more digits after training
    r".*\bmAP\b.*": "SCORES",  # which head is better may depend on the machine
    r"own head|re-probed": "HEAD",
    r"[─━]+": "─",  # column widths depend on the numbers
    r"[ \t]+": " ",
}


class Block(NamedTuple):
    """A block of a page: its mark ("run", "not run: REASON" or None), language, text and the position of the text."""

    mark: str | None
    language: str
    text: str
    start: int


def blocks(page: str) -> list[Block]:
    """Return the blocks of commands and Python code in the text of a page."""
    return [
        Block(match["mark"], match["language"], match["text"], match.start("text")) for match in BLOCK.finditer(page)
    ]


def commands(block: Block) -> list[str]:
    """Return the commands in a console block; a backslash at the end of a line continues it."""
    lines = block.text.replace("\\\n", "").splitlines()
    return [line.removeprefix(PROMPT) for line in lines if line.startswith(PROMPT)]


def run_command(command: Sequence[str], folder: Path) -> str:
    """Return the output of a command, errors included, at 80 columns."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path, "COLUMNS": "80"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{command[-1].strip()} failed:\n{done.stdout}")
    return done.stdout


def run_page(page: str, run: Runner = run_command) -> Iterator[tuple[Block, str]]:
    """Run the blocks of a page and yield each with the text that it should have."""
    with TemporaryDirectory() as folder:
        for block in blocks(page):
            if block.mark == "run":
                run_block = _run_console if block.language == "console" else _run_python
                yield block, run_block(block, Path(folder), run)


def _run_console(block: Block, folder: Path, run: Runner) -> str:
    text = ""
    for line in re.findall(rf"^{re.escape(PROMPT)}(?:.*\\\n)*.*\n", block.text, re.M):
        output = run(["bash", "-c", line.removeprefix(PROMPT)], folder).replace(f"{folder.resolve()}/", "")
        text += line + "".join(shown.rstrip() + "\n" for shown in output.splitlines())
    return text


def _run_python(block: Block, folder: Path, run: Runner) -> str:
    """Run Python code, which must not fail, and return it."""
    run([sys.executable, "-c", block.text], folder)
    return block.text


def comparable(text: str) -> list[str]:
    """Return the lines of an output without its machine-dependent parts, sorted: tables are ordered by score."""
    for pattern, replacement in MACHINE_DEPENDENT.items():
        text = re.sub(pattern, replacement, text)
    return sorted(text.splitlines())


def rewrite(path: Path) -> None:
    """Run the blocks of a page and replace the output it shows."""
    page = path.read_text(encoding="utf-8")
    for block, text in reversed(list(run_page(page))):
        page = page[: block.start] + text + page[block.start + len(block.text) :]
    path.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        rewrite(Path(name))
