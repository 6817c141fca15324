/**
 * A sandbox as tools of a language model, in the shapes that OpenAI, Anthropic and Vercel's AI SDK take.
 *
 * ```ts
 * import { Sandbox } from "withruntime";
 * import { sandboxTools } from "withruntime/tools";
 *
 * const tools = sandboxTools(await Sandbox.create());
 * // tools.anthropic() goes into the request; then, for each tool_use block of the answer:
 * const content = await tools.run("runtime_exec", { command: "ls" });
 * ```
 *
 * @packageDocumentation
 */

import type { Sandbox } from "../sandbox.js";
import { aiSdk, anthropic, openAiChat, openAiResponses } from "./shapes.js";
import type { AiSdkTool, AnthropicTool, OpenAiChatTool, OpenAiResponsesTool } from "./shapes.js";
import { makeTools, runTool, type Tool, type ToolDefinition, type ToolName, type ToolOptions } from "./tools.js";

export type { AiSdkTool, AnthropicTool, OpenAiChatTool, OpenAiResponsesTool, StandardSchema } from "./shapes.js";
export type { ParameterSchema, ToolDefinition, ToolName, ToolOptions } from "./tools.js";

/** The tools of one sandbox. */
export class SandboxTools {
  readonly #tools: readonly Tool[];

  /** @internal */
  constructor(tools: readonly Tool[]) {
    this.#tools = tools;
  }

  /** Names, descriptions and JSON Schemas, for any other library. */
  get definitions(): ToolDefinition[] {
    return this.#tools.map(({ name, description, parameters }) => ({ name, description, parameters }));
  }

  /** For `tools` of OpenAI's chat completions. */
  openai(): OpenAiChatTool[] {
    return this.definitions.map(openAiChat);
  }

  /** For `tools` of OpenAI's responses. */
  openaiResponses(): OpenAiResponsesTool[] {
    return this.definitions.map(openAiResponses);
  }

  /** For `tools` of Anthropic's messages. */
  anthropic(): AnthropicTool[] {
    return this.definitions.map(anthropic);
  }

  /** For `tools` of Vercel's AI SDK, which runs them itself. */
  aiSdk(): Record<ToolName, AiSdkTool> {
    const named = this.definitions.map((definition) => [
      definition.name,
      aiSdk(definition, (input, options) => this.run(definition.name, input, { signal: options?.abortSignal })),
    ]);
    return Object.fromEntries(named) as Record<ToolName, AiSdkTool>;
  }

  /**
   * Runs a tool as the model asked for it, and answers JSON text for the model. A refusal it can do something about (no
   * such file, wrong arguments) is such an answer, `{"error": {code, message}}`.
   *
   * @param args - An object, or its JSON text.
   * @throws `RuntimeError` what the model can do nothing about: no connection, no right, the server's fault.
   */
  async run(name: string, args: unknown, options: { signal?: AbortSignal | undefined } = {}): Promise<string> {
    return await runTool(this.#tools, name, args, options.signal);
  }
}

/** Tools that work in a sandbox; a paused one wakes when the model uses them. */
export function sandboxTools(sandbox: Sandbox, options: ToolOptions = {}): SandboxTools {
  return new SandboxTools(makeTools(sandbox, options));
}
