"""Writes the synchronous client, `_sync`, from the asynchronous one, `_async`.

    python scripts/derive_sync.py [--check]

It goes through the source word by word: `async` and `await` fall away, and names that say "asynchronous" get their
synchronous ones. With `--check` nothing is written, and a difference is an error.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "withruntime"
SOURCE, TARGET = PACKAGE / "_async", PACKAGE / "_sync"

NAMES = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "aclose": "close",
    "AsyncIterator": "Iterator",
    "AsyncIterable": "Iterable",
    "StopAsyncIteration": "StopIteration",
    "_io_async": "_io_sync",
    "_async": "_sync",
}
#: `Awaitable[X]` is just X where nothing is awaited.
AWAITABLE = re.compile(r"Awaitable\[((?:[^\[\]]|\[(?:[^\[\]]|\[[^\[\]]*\])*\])*)\]")
#: In prose and quoted annotations.
PROSE = [
    (re.compile(r"\bAsyncIterator\b"), "Iterator"),
    (re.compile(r"\bAsync([A-Z]\w*)"), r"\1"),
    (re.compile(r"\bawait "), ""),
    (re.compile(r"\basync (with|for|def)\b"), r"\1"),
]
HEADER = "# Written by scripts/derive_sync.py from _async/{name}: do not edit.\n"


def derive(text: str) -> str:
    """The synchronous form of a module."""
    out: list[str] = []
    line, column = 1, 0
    drop_space = False
    lines = text.splitlines(keepends=True)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        start_line, start_column = token.start
        gap = _between(lines, line, column, start_line, start_column)
        if drop_space:
            gap = gap.lstrip(" ")
            drop_space = False
        line, column = token.end
        out.append(gap)
        if token.type == tokenize.NAME and token.string in ("async", "await"):
            drop_space = True
        elif token.type == tokenize.NAME:
            out.append(_name(token.string))
        elif token.type in (tokenize.STRING, tokenize.COMMENT) or "STRING" in tokenize.tok_name[token.type]:
            out.append(_prose(token.string))
        else:
            out.append(token.string)
    return AWAITABLE.sub(r"\1", "".join(out)).replace("Awaitable, ", "")


def _between(lines: list[str], line: int, column: int, to_line: int, to_column: int) -> str:
    if line == to_line:
        return lines[line - 1][column:to_column] if line <= len(lines) else ""
    parts = [lines[line - 1][column:], *lines[line : to_line - 1]]
    if to_line <= len(lines):
        parts.append(lines[to_line - 1][:to_column])
    return "".join(parts)


def _name(name: str) -> str:
    if name in NAMES:
        return NAMES[name]
    if name.startswith("Async") and len(name) > 5 and name[5].isupper():
        return name[5:]
    return name


def _prose(text: str) -> str:
    for pattern, put in PROSE:
        text = pattern.sub(put, text)
    return text


def modules() -> dict[str, str]:
    """All of `_sync`, by file name."""
    made = {
        path.name: HEADER.format(name=path.name) + derive(path.read_text())
        for path in sorted(SOURCE.glob("*.py"))
        if path.name != "__init__.py"
    }
    made["__init__.py"] = (
        HEADER.format(name="__init__.py") + '"""The synchronous client, derived from the asynchronous one."""\n'
    )
    return made


def main() -> int:
    made = modules()
    there = {path.name: path.read_text() for path in TARGET.glob("*.py")}
    if "--check" in sys.argv[1:]:
        wrong = sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))
        if wrong:
            print(f"_sync is not derived from _async: {', '.join(wrong)}; run scripts/derive_sync.py", file=sys.stderr)
        return 1 if wrong else 0
    TARGET.mkdir(exist_ok=True)
    for name, text in made.items():
        (TARGET / name).write_text(text)
    for name in there.keys() - made.keys():
        (TARGET / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
