/**
 * Map and reduce over forks: a program loads its data once, copies of the whole sandbox go on with it in memory, each with
 * a part of the work, and what they found is put together here.
 *
 * Prints what was loaded, what each copy found, and the sum:
 *
 *     loaded 3000 numbers
 *     copies found 332833500, 2331833500, 6330833500
 *     in all 8995500500
 */

import { Sandbox } from "withruntime";

/** Loads, says so, and then does the part of the work that it is told. */
const program = `
table = [n * n for n in range(3000)]
print("loaded", len(table), "numbers", flush=True)
first, last = map(int, input().split())
print(sum(table[first:last]))
`;

await using sandbox = await Sandbox.create({ vcpu: 1, memoryMiB: 512, labels: { example: "map-reduce" } });
const process = await sandbox.spawn(["python3", "-c", program], { stdin: "pipe" });
for await (const said of process.output()) {
  if (said.type !== "stdout") continue;
  console.log(said.data.trim());
  break;
}

// From here on there are three of it, and each has the table.
const copies = await sandbox.fork({ count: 3 });
try {
  const parts = await Promise.all(
    copies.map(async (copy, i) => {
      const part = await copy.processes.get(process.id);
      await part.write(`${String(i * 1000)} ${String((i + 1) * 1000)}\n`);
      const { stdout } = await part.wait();
      return Number(stdout.trim().split("\n").at(-1));
    }),
  );
  console.log(`copies found ${parts.join(", ")}`);
  console.log(`in all ${String(parts.reduce((sum, part) => sum + part))}`);
} finally {
  await Promise.all(copies.map((copy) => copy.delete()));
}
