/** The tools against the types of the libraries that take them. */

import type { Tool as AnthropicTool } from "@anthropic-ai/sdk/resources/messages";
import type { ToolSet } from "ai";
import type { ChatCompletionTool } from "openai/resources/chat/completions";
import type { Tool as OpenAiTool } from "openai/resources/responses/responses";
import { expectTypeOf, test } from "vitest";

import type { SandboxTools } from "../../src/tools/index.js";

declare const tools: SandboxTools;

test("they fit", () => {
  expectTypeOf(tools.openai()).toExtend<ChatCompletionTool[]>();
  expectTypeOf(tools.openaiResponses()).toExtend<OpenAiTool[]>();
  expectTypeOf(tools.anthropic()).toExtend<AnthropicTool[]>();
  expectTypeOf(tools.aiSdk()).toExtend<ToolSet>();
});
