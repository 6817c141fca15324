import { beforeAll, describe, expect, test } from "vitest";

import { ConnectionError, type Sandbox } from "../../src/index.js";
import { sandboxTools, type SandboxTools } from "../../src/tools/index.js";
import { box, client, failure } from "../support/runtime.js";

let sandbox: Sandbox;
let tools: SandboxTools;
type Answer = Record<string, unknown> & { error?: { code: string; message: string } };
const run = async (name: string, args: unknown, of = tools): Promise<Answer> =>
  JSON.parse(await of.run(name, args)) as Answer;

beforeAll(async () => {
  sandbox = await box();
  tools = sandboxTools(sandbox);
});

test("a model writes, lists, runs and reads", async () => {
  const written = await run("runtime_write_file", { path: "app/main.py", content: "print('ü')" });
  expect(written).toEqual({ path: "/workspace/app/main.py", bytes: 11 });
  const listed = await run("runtime_list_files", '{"depth": 2}');
  expect(listed["entries"]).toContain("file 11 /workspace/app/main.py");
  expect(await run("runtime_exec", '{"command": "python3 app/main.py; echo no >&2; exit 3"}')).toEqual({
    exit_code: 3,
    stdout: "ü\n",
    stderr: "no\n",
  });
  expect(await run("runtime_read_file", { path: "app/main.py" })).toEqual({
    path: "/workspace/app/main.py",
    content: "print('ü')",
  });
});

test("answers have a bounded length", async () => {
  const tight = sandboxTools(sandbox, { maxOutputChars: 400 });
  const out = await run("runtime_exec", { command: "echo begin; seq 10000; echo end; seq 10000 >&2" }, tight);
  expect(out["truncated"]).toBe(true);
  expect((out["stdout"] as string).length + (out["stderr"] as string).length).toBeLessThan(500);
  expect(out["stdout"]).toMatch(/^begin\n[\s\S]*characters left out[\s\S]*end\n$/);

  await sandbox.exec("seq 100000 > big; mkdir -p many; cd many; touch $(seq 100)", { check: true });
  const read = await run("runtime_read_file", { path: "big" }, tight);
  expect(read).toMatchObject({ truncated: true });
  expect(read["content"]).toHaveLength(400);
  const list = await run("runtime_list_files", { path: "many" }, tight);
  expect((list["entries"] as string[]).length + (list["left_out"] as number)).toBe(100);

  // How far a command comes in its time is the machine's to say: twice the time, until it was enough.
  for (let timeoutSeconds = 1; ; timeoutSeconds *= 2) {
    const short = sandboxTools(sandbox, { timeoutSeconds });
    const late = await run("runtime_exec", { command: "echo a; sleep 3600" }, short);
    expect(late["timed_out"]).toBe(true);
    if (late["stdout"] === "a\n") break;
    expect(late["stdout"]).toBe("");
  }
});

test("a model may write a large file", async () => {
  const content = "0123456789abcdef\n".repeat(100_000);
  expect(await run("runtime_write_file", { path: "large", content })).toEqual({
    path: "/workspace/large",
    bytes: 1_700_000,
  });
  expect(await run("runtime_exec", { command: "wc -l < large" })).toMatchObject({ stdout: "100000\n" });
});

describe("what goes wrong", () => {
  test.each([
    ["runtime_read_file", { path: "none" }, "file_not_found"],
    ["runtime_write_file", { path: "/root/x", content: "" }, "permission_denied"],
    ["runtime_list_files", { path: "none" }, "file_not_found"],
    ["runtime_exec", {}, "invalid_arguments"],
    ["runtime_exec", { command: 5 }, "invalid_arguments"],
    ["runtime_exec", { command: "true", shell: "zsh" }, "invalid_arguments"],
    ["runtime_exec", "{nonsense", "invalid_arguments"],
    ["runtime_exec", "[]", "invalid_arguments"],
    ["runtime_list_files", { depth: 99 }, "invalid_arguments"],
    ["rm_rf", {}, "invalid_arguments"],
  ])("%s %j is told to the model", async (name, args, code) => {
    const { error } = await run(name, args);
    expect(error?.code).toBe(code);
    expect(error?.message).toBeTruthy();
  });

  test("that a model cannot help is the program's", async () => {
    const nobody = client({ maxRetries: 0 });
    const far = await nobody.sandboxes.get(sandbox.id);
    const gone = new AbortController();
    gone.abort();
    expect(
      await failure(
        sandboxTools(far).run("runtime_read_file", { path: "x" }, { signal: gone.signal }),
        ConnectionError,
      ),
    ).toBeTruthy();
  });
});

test("the AI SDK runs them", async () => {
  const { generateText, stepCountIs } = await import("ai");
  const { MockLanguageModelV3 } = await import("ai/test");
  const usage = {
    inputTokens: { total: 1, noCache: 1, cacheRead: undefined, cacheWrite: undefined },
    outputTokens: { total: 1, text: 1, reasoning: undefined },
  };
  let asked: unknown;
  const model = new MockLanguageModelV3({
    doGenerate: ({ tools: given, prompt }) => {
      asked ??= given;
      const isAnswered = prompt.some(({ role }) => role === "tool");
      return Promise.resolve({
        content: isAnswered
          ? [{ type: "text" as const, text: "done" }]
          : [
              {
                type: "tool-call" as const,
                toolCallId: "1",
                toolName: "runtime_exec",
                input: '{"command":"echo from the model"}',
              },
            ],
        finishReason: { unified: isAnswered ? ("stop" as const) : ("tool-calls" as const), raw: undefined },
        usage,
        warnings: [],
      });
    },
  });
  const { steps, text } = await generateText({ model, prompt: "go", tools: tools.aiSdk(), stopWhen: stepCountIs(3) });
  expect(text).toBe("done");
  expect(JSON.parse(steps[0]?.toolResults[0]?.output as string)).toMatchObject({
    exit_code: 0,
    stdout: "from the model\n",
  });
  const exec = (asked as { name: string; inputSchema: object }[]).find(({ name }) => name === "runtime_exec");
  expect(exec?.inputSchema).toMatchObject({ type: "object", required: ["command"], additionalProperties: false });
});

test("every shape names the same tools with the same schemas", () => {
  const names = ["runtime_exec", "runtime_read_file", "runtime_write_file", "runtime_list_files"];
  expect(tools.openai().map((tool) => tool.function.name)).toEqual(names);
  expect(tools.openaiResponses().map(({ name }) => name)).toEqual(names);
  expect(Object.keys(tools.aiSdk())).toEqual(names);
  const schemas = tools.definitions.map(({ parameters }) => parameters);
  expect(tools.anthropic().map(({ input_schema }) => input_schema)).toEqual(schemas);
  expect(tools.openai().map((tool) => tool.function.parameters)).toEqual(schemas);
});
