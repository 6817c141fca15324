"""A background job: begun once for each event, however often the event comes, and followed by whoever comes later.

Prints what the two that follow it have seen, and how it ended:

    one job: True
    first saw: step 1
    second saw: step 1, step 2, step 3, step 4, step 5
    ended with 0, report: 5 steps
"""

from __future__ import annotations

import uuid

from withruntime import Process, Runtime, Sandbox

JOB = "for n in 1 2 3 4 5; do echo step $n; sleep 0.3; done; echo 5 steps > report.txt"


def begin(runtime: Runtime, event: str) -> tuple[Sandbox, Process]:
    """The job of an event. The keys make a second delivery find what the first one began."""
    sandbox = runtime.sandboxes.create(
        labels={"example": "background-job", "event": event},
        timeout_seconds=600,  # no job is forgotten
        idempotency_key=f"box-{event}",
    )
    return sandbox, sandbox.spawn(JOB, idempotency_key=f"job-{event}")


def main() -> None:
    event = uuid.uuid4().hex
    runtime = Runtime()
    sandbox, job = begin(runtime, event)
    again, same = begin(runtime, event)
    print("one job:", (again.id, same.id) == (sandbox.id, job.id))

    # The first one looks at the beginning and goes away; the job goes on.
    first = next(event["data"] for event in job.output() if event["type"] == "stdout")
    print("first saw:", first.splitlines()[0])

    # The second one has nothing but the label. It reads from the beginning, and waits for the end.
    with Runtime() as other:
        found = next(iter(other.sandboxes.list(labels={"event": event})))
        result = found.process(job.id).wait()
        print("second saw:", ", ".join(result.stdout.splitlines()))
        report = found.files.read_text("/workspace/report.txt").strip()
        print(f"ended with {result.exit_code}, report: {report}")
        found.delete()
    runtime.close()


if __name__ == "__main__":
    main()
