/**
 * A background job: begun once for each event, however often the event comes, and followed by whoever comes later.
 *
 * Prints what the two that follow it have seen, and how it ended:
 *
 *     one job: true
 *     first saw: step 1
 *     second saw: step 1, step 2, step 3, step 4, step 5
 *     ended with 0, report: 5 steps
 */

import { Runtime, type Process, type Sandbox } from "withruntime";

const job = "for n in 1 2 3 4 5; do echo step $n; sleep 0.3; done; echo 5 steps > report.txt";

/** The job of an event. The keys make a second delivery find what the first one began. */
async function begin(runtime: Runtime, event: string): Promise<{ sandbox: Sandbox; process: Process }> {
  const sandbox = await runtime.sandboxes.create(
    // No job is forgotten: there is a time limit.
    { labels: { example: "background-job", event }, timeoutSeconds: 600 },
    { idempotencyKey: `box-${event}` },
  );
  return { sandbox, process: await sandbox.spawn(job, { request: { idempotencyKey: `job-${event}` } }) };
}

const event = crypto.randomUUID();
const runtime = new Runtime();
const one = await begin(runtime, event);
const same = await begin(runtime, event);
console.log(`one job: ${String(one.sandbox.id === same.sandbox.id && one.process.id === same.process.id)}`);

// The first one looks at the beginning and goes away; the job goes on.
for await (const said of one.process.output()) {
  if (said.type !== "stdout") continue;
  console.log(`first saw: ${said.data.split("\n")[0] ?? ""}`);
  break;
}

// The second one has nothing but the label. It reads from the beginning, and waits for the end.
const [found] = await new Runtime().sandboxes.list({ labels: { event } }).toArray();
if (found === undefined) throw new Error("the job's sandbox is gone");
const { stdout, exitCode } = await (await found.processes.get(one.process.id)).wait();
console.log(`second saw: ${stdout.trim().split("\n").join(", ")}`);
const report = (await found.files.readText("/workspace/report.txt")).trim();
console.log(`ended with ${String(exitCode)}, report: ${report}`);
await found.delete();
