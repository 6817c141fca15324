"""Map-reduce over forks: one sandbox is made ready, and its copies go on from there, each with a share of the work.

What all need is loaded once, into the memory of one process. A fork copies memory too, so that every copy begins where
the first one stands: no file is read again, no program starts. Only what comes out of the copies is put together here.

Prints how the work was shared, and the sum:

    ready: 1000 words
    copy 0: 250 words, copy 1: 250 words, copy 2: 250 words, copy 3: 250 words
    alpha 334, beta 333, gamma 333
"""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from withruntime import Runtime, Sandbox

COPIES = 4

#: Runs inside the sandbox: loads, says so, and waits for its share, which only a copy is told.
WORKER = r"""
import collections, json, sys
words = open("/workspace/words.txt").read().split()
print("ready:", len(words), "words", flush=True)
share, shares = map(int, sys.stdin.readline().split())
mine = words[share::shares]
print(json.dumps({"words": len(mine), "counts": collections.Counter(mine)}), flush=True)
"""


def first_line(sandbox: Sandbox, process_id: str) -> str:
    """The line that a process begins with."""
    text = ""
    for event in sandbox.process(process_id).output():
        text += event.get("data", "")
        if "\n" in text:
            break
    return text.splitlines()[0]


def part(sandbox: Sandbox, process_id: str, share: int) -> tuple[int, Counter[str]]:
    """The map step, in one copy: tells the process its share and reads its answer."""
    process = sandbox.process(process_id)
    process.write(f"{share} {COPIES}\n", eof=True)
    result = json.loads(process.wait().stdout.splitlines()[-1])
    return result["words"], Counter(result["counts"])


def main() -> None:
    with Runtime() as runtime, runtime.sandboxes.create(labels={"example": "map-reduce"}) as sandbox:
        words = [("alpha", "beta", "gamma")[number % 3] for number in range(1000)]
        sandbox.files.write("/workspace/words.txt", " ".join(words))
        worker = sandbox.spawn(["python3", "-c", WORKER], stdin="pipe")
        print(first_line(sandbox, worker.id))

        # The process is in each copy, with all that it has read, under the same id.
        copies = sandbox.fork(COPIES, labels={"example": "map-reduce"})
        try:
            with ThreadPoolExecutor(COPIES) as pool:
                parts = list(pool.map(part, copies, [worker.id] * COPIES, range(COPIES)))
        finally:
            for copy in copies:
                copy.delete()
        print(", ".join(f"copy {share}: {count} words" for share, (count, _) in enumerate(parts)))
        total: Counter[str] = sum((counts for _, counts in parts), Counter())
        print(", ".join(f"{word} {count}" for word, count in sorted(total.items())))


if __name__ == "__main__":
    main()
