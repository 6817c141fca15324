/** The shapes in which the libraries of model makers take tools. Plain data: none of those libraries is needed here. */

import type { ParameterSchema, ToolDefinition } from "./tools.js";

/** A tool of OpenAI's chat completions. */
export interface OpenAiChatTool {
  type: "function";
  function: { name: string; description: string; parameters: Record<string, unknown> };
}

/** A tool of OpenAI's responses. */
export interface OpenAiResponsesTool {
  type: "function";
  name: string;
  description: string;
  parameters: Record<string, unknown>;
  strict: false;
}

/** A tool of Anthropic's messages. */
export interface AnthropicTool {
  name: string;
  description: string;
  input_schema: { type: "object"; properties: Record<string, unknown>; required: string[]; [more: string]: unknown };
}

type Arguments = Record<string, unknown>;

/** A schema by the Standard Schema and Standard JSON Schema conventions, which the AI SDK reads. */
export interface StandardSchema {
  readonly "~standard": {
    readonly version: 1;
    readonly vendor: "withruntime";
    readonly types?: { readonly input: Arguments; readonly output: Arguments } | undefined;
    readonly validate: (value: unknown) => { readonly value: Arguments };
    readonly jsonSchema: {
      readonly input: () => Record<string, unknown>;
      readonly output: () => Record<string, unknown>;
    };
  };
}

/** A tool of Vercel's AI SDK. */
export interface AiSdkTool {
  description: string;
  inputSchema: StandardSchema;
  execute: (input: Arguments, options?: { abortSignal?: AbortSignal | undefined }) => Promise<string>;
}

export function openAiChat({ name, description, parameters }: ToolDefinition): OpenAiChatTool {
  return { type: "function", function: { name, description, parameters: { ...parameters } } };
}

export function openAiResponses({ name, description, parameters }: ToolDefinition): OpenAiResponsesTool {
  return { type: "function", name, description, parameters: { ...parameters }, strict: false };
}

export function anthropic({ name, description, parameters }: ToolDefinition): AnthropicTool {
  return { name, description, input_schema: { ...parameters } };
}

export function aiSdk({ description, parameters }: ToolDefinition, execute: AiSdkTool["execute"]): AiSdkTool {
  return { description, inputSchema: standardSchema(parameters), execute };
}

/** Arguments are checked where they are used, so that the model is told what is wrong with them. */
function standardSchema(parameters: ParameterSchema): StandardSchema {
  const json = (): Record<string, unknown> => ({ ...parameters });
  const validate = (value: unknown): { value: Arguments } => ({ value: value as Arguments });
  return {
    "~standard": { version: 1, vendor: "withruntime", validate, jsonSchema: { input: json, output: json } },
    // How the AI SDK marks schemas of its own, which its older versions ask for.
    ...{ [Symbol.for("vercel.ai.schema")]: true, jsonSchema: json(), validate: undefined },
  };
}
