/**
 * An agent loop: the model is asked, the tools it names are run in a sandbox, and it is asked again, until it is content.
 *
 * `ScriptedModel` stands where a model would be called. With Anthropic's client it would be
 * `client.messages.create({ model, tools: tools.anthropic(), messages })`; the loop is the same.
 *
 * Prints the tools that were used and the last answer:
 *
 *     runtime_write_file, runtime_exec, runtime_write_file, runtime_exec
 *     The tests pass now.
 */

import assert from "node:assert";

import { Sandbox } from "withruntime";
import { sandboxTools, type AnthropicTool } from "withruntime/tools";

type Block =
  | { type: "text"; text: string }
  | { type: "tool_use"; id: string; name: string; input: unknown }
  | { type: "tool_result"; tool_use_id: string; content: string };
interface Message {
  role: "user" | "assistant";
  content: string | Block[];
}
interface Answer {
  stop_reason: "tool_use" | "end_turn";
  content: Block[];
}

const broken = `def add(a, b):
    return a - b

assert add(2, 2) == 4, add(2, 2)
print('passed')
`;

/** Says what a model might say: writes a program, sees it fail, mends it. */
class ScriptedModel {
  #turn = 0;

  create({ tools, messages }: { tools: AnthropicTool[]; messages: Message[] }): Promise<Answer> {
    assert(tools.some(({ name }) => name === "runtime_exec"));
    this.#turn += 1;
    const last = JSON.stringify(messages.at(-1)?.content);
    return Promise.resolve(this.#say(last));
  }

  #say(last: string): Answer {
    switch (this.#turn) {
      case 1:
        return uses("runtime_write_file", { path: "add.py", content: broken });
      case 3:
        // It reads what went wrong, as a model would.
        assert.match(last, /AssertionError/);
        return uses("runtime_write_file", { path: "add.py", content: broken.replace("a - b", "a + b") });
      case 2:
      case 4:
        return uses("runtime_exec", { command: "python3 add.py" });
      default:
        assert.match(last, /passed/);
        return { stop_reason: "end_turn", content: [{ type: "text", text: "The tests pass now." }] };
    }
  }
}

function uses(name: string, input: unknown): Answer {
  return { stop_reason: "tool_use", content: [{ type: "tool_use", id: `use-${name}`, name, input }] };
}

const model = new ScriptedModel();
const messages: Message[] = [{ role: "user", content: "Write add.py with a test, and make it pass." }];
const used: string[] = [];
const sandbox = await Sandbox.create({ labels: { example: "agent-loop" } });
try {
  const tools = sandboxTools(sandbox);
  // A loop that a model drives needs an end of its own.
  for (let turn = 0; turn < 20; turn += 1) {
    const answer = await model.create({ tools: tools.anthropic(), messages });
    messages.push({ role: "assistant", content: answer.content });
    if (answer.stop_reason !== "tool_use") break;
    const results: Block[] = [];
    for (const block of answer.content) {
      if (block.type !== "tool_use") continue;
      used.push(block.name);
      // What goes wrong in the sandbox is an answer too: the model can do something about it.
      const content = await tools.run(block.name, block.input);
      results.push({ type: "tool_result", tool_use_id: block.id, content });
    }
    messages.push({ role: "user", content: results });
  }
} finally {
  await sandbox.delete();
}
console.log(used.join(", "));
const [last] = messages.at(-1)?.content ?? [];
console.log(typeof last === "object" && last.type === "text" ? last.text : last);
