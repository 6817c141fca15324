"""An agent loop: a model is asked, the tools it names run in a sandbox, and it is asked again, until it is content.

`ScriptedModel` stands where a model would be called. With Anthropic's client it would be
`client.messages.create(model=…, tools=anthropic_tools(), messages=messages)`; the loop is the same.

Prints the tools that were used and the last answer:

    runtime_write_file, runtime_exec, runtime_write_file, runtime_exec
    The tests pass now.
"""

from __future__ import annotations

import json
from typing import Any

from withruntime import Runtime
from withruntime.tools import anthropic_tools, call_tool

BROKEN = "def add(a, b):\n    return a - b\n\nassert add(2, 2) == 4, add(2, 2)\nprint('passed')\n"


class ScriptedModel:
    """Says what a model might say: writes a program, sees it fail, mends it."""

    def __init__(self) -> None:
        self.turn = 0

    def create(self, tools: list[dict[str, Any]], messages: list[dict[str, Any]]) -> dict[str, Any]:
        names = {tool["name"] for tool in tools}
        assert {"runtime_write_file", "runtime_exec"} <= names
        self.turn += 1
        last = messages[-1]["content"]
        if self.turn == 1:
            return uses("runtime_write_file", path="add.py", content=BROKEN)
        if self.turn in (2, 4):
            return uses("runtime_exec", command="python3 add.py")
        if self.turn == 3:
            # It reads what went wrong, as a model would.
            assert "AssertionError" in json.dumps(last)
            return uses("runtime_write_file", path="add.py", content=BROKEN.replace("a - b", "a + b"))
        assert "passed" in json.dumps(last)
        return {"stop_reason": "end_turn", "content": [{"type": "text", "text": "The tests pass now."}]}


def uses(name: str, **arguments: Any) -> dict[str, Any]:
    block = {"type": "tool_use", "id": f"use-{name}", "name": name, "input": arguments}
    return {"stop_reason": "tool_use", "content": [block]}


def main() -> None:
    model = ScriptedModel()
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Write add.py with a test, and make it pass."}]
    used = []
    # Deleted at the end of the block.
    with Runtime().sandboxes.create(labels={"example": "agent-loop"}) as sandbox:
        for _ in range(20):  # a loop that a model drives needs an end of its own
            answer = model.create(tools=anthropic_tools(), messages=messages)
            messages.append({"role": "assistant", "content": answer["content"]})
            if answer["stop_reason"] != "tool_use":
                break
            results = []
            for block in answer["content"]:
                if block["type"] != "tool_use":
                    continue
                used.append(block["name"])
                # What goes wrong in the sandbox is an answer too: the model can do something about it.
                result = call_tool(sandbox, block["name"], block["input"])
                results.append({"type": "tool_result", "tool_use_id": block["id"], "content": json.dumps(result)})
            messages.append({"role": "user", "content": results})
    print(", ".join(used))
    print(messages[-1]["content"][0]["text"])


if __name__ == "__main__":
    main()
