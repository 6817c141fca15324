/**
 * A code interpreter: pieces of JavaScript that share their variables, run one after the other in one process.
 *
 * The process reads a line of JSON for each piece and answers one. It lives in the sandbox, so that what it knows
 * survives a pause: the memory is saved and comes back.
 *
 * Prints the answer of each piece:
 *
 *     x = 21
 *     42
 *     TypeError: Cannot read properties of null (reading 'y')
 *     after the pause: 42
 */

import { Sandbox, type Process } from "withruntime";

/** Runs inside the sandbox. */
const worker = String.raw`
const { createContext, runInContext } = require("node:vm");
const { createInterface } = require("node:readline");
let printed = "";
const log = (...words) => (printed += words.map(String).join(" ") + "\n");
const context = createContext({ console: { log, error: log }, require });
createInterface({ input: process.stdin }).on("line", (line) => {
  const { id, code } = JSON.parse(line);
  printed = "";
  let value, error;
  try {
    const result = runInContext(code, context);
    if (result !== undefined) value = String(result);
  } catch (raised) {
    error = String(raised);
  }
  process.stdout.write(JSON.stringify({ id, printed, value, error }) + "\n");
});
`;

interface Answer {
  id: number;
  printed: string;
  value?: string;
  error?: string;
}

/** One worker in one sandbox. */
class Interpreter {
  readonly #worker: Process;
  #cells = 0;
  /** Where in the worker's output the next answer begins. */
  #cursor = 0;

  private constructor(worker: Process) {
    this.#worker = worker;
  }

  static async start(sandbox: Sandbox): Promise<Interpreter> {
    await sandbox.files.write("/workspace/.interpreter.cjs", worker);
    return new Interpreter(await sandbox.spawn(["node", "/workspace/.interpreter.cjs"], { stdin: "pipe" }));
  }

  /** The answer to one piece of code. */
  async run(code: string): Promise<Answer> {
    this.#cells += 1;
    await this.#worker.write(`${JSON.stringify({ id: this.#cells, code })}\n`);
    let line = "";
    for await (const event of this.#worker.output({ cursor: this.#cursor })) {
      if (event.type === "exit") throw new Error("the worker has ended");
      if (event.type !== "stdout") continue;
      line += event.data;
      if (!line.includes("\n")) continue;
      // Answers come one at a time: what was read is this one, whole.
      this.#cursor = event.offset + Buffer.byteLength(event.data);
      break;
    }
    const answer = JSON.parse(line) as Answer;
    if (answer.id !== this.#cells) throw new Error(`an answer to piece ${String(answer.id)}`);
    return answer;
  }
}

const sandbox = await Sandbox.create({ labels: { example: "code-interpreter" } });
try {
  const javascript = await Interpreter.start(sandbox);
  console.log((await javascript.run("var x = 21; console.log('x =', x)")).printed.trim());
  console.log((await javascript.run("x * 2")).value);
  console.log((await javascript.run("null.y")).error);
  // Nobody uses it for a while: it costs neither memory nor CPU, and the next call wakes it.
  await sandbox.pause();
  console.log(`after the pause: ${String((await javascript.run("x * 2")).value)}`);
} finally {
  await sandbox.delete();
}
