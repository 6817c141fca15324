"""A code interpreter: pieces of Python that share their variables, run one after the other in one process.

The process reads a line of JSON for each piece and answers one. It lives in the sandbox, so that what it knows survives
a pause: the memory is saved and comes back.

Prints the answer of each piece:

    x = 21
    42
    ZeroDivisionError: division by zero
    after the pause: 42
"""

from __future__ import annotations

import json
from typing import Any

from withruntime import Process, Runtime, Sandbox

#: Runs inside the sandbox.
WORKER = r"""
import ast, contextlib, io, json, sys, traceback
names = {"__name__": "__main__"}
for line in sys.stdin:
    cell = json.loads(line)
    printed, value, error = io.StringIO(), None, None
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            tree = ast.parse(cell["code"])
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, "cell", "exec"), names)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        except BaseException as raised:
            error = "".join(traceback.format_exception_only(type(raised), raised)).strip()
    answer = {"id": cell["id"], "printed": printed.getvalue(), "error": error}
    answer["value"] = None if value is None else repr(value)
    sys.__stdout__.write(json.dumps(answer) + "\n")
    sys.__stdout__.flush()
"""


class Interpreter:
    """One worker in one sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        sandbox.files.write("/workspace/.interpreter.py", WORKER)
        self.worker: Process = sandbox.spawn(["python3", "-u", "/workspace/.interpreter.py"], stdin="pipe")
        self.cells = 0
        # Where in the worker's output the next answer begins.
        self.cursor = 0

    def run(self, code: str) -> dict[str, Any]:
        """The answer to one piece of code: `printed`, `value` and `error`."""
        self.cells += 1
        self.worker.write(json.dumps({"id": self.cells, "code": code}) + "\n")
        line = ""
        for event in self.worker.output(cursor=self.cursor):
            if event["type"] == "exit":
                raise RuntimeError("the worker has ended")
            if event["type"] != "stdout":
                continue
            text = event["data"]
            line += text
            if "\n" in line:
                # Answers come one at a time: what was read is this one, whole.
                self.cursor = event["offset"] + len(text.encode())
                break
        answer: dict[str, Any] = json.loads(line)
        assert answer["id"] == self.cells
        return answer


def main() -> None:
    with Runtime().sandboxes.create(labels={"example": "code-interpreter"}) as sandbox:
        python = Interpreter(sandbox)
        print(python.run("x = 21\nprint('x =', x)")["printed"], end="")
        print(python.run("x * 2")["value"])
        print(python.run("x / 0")["error"])
        # Nobody uses it for a while: it costs neither memory nor CPU, and the next call wakes it.
        sandbox.pause()
        print("after the pause:", python.run("x * 2")["value"])


if __name__ == "__main__":
    main()
