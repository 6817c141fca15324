/**
 * A sandbox as tools of a language model: run a command, read, write and list files, with answers of bounded length.
 */

import { RuntimeError } from "../errors.js";
import type { Sandbox } from "../sandbox.js";
import { isObject } from "../transport/answer.js";
import { cap } from "./cap.js";

/** How the tools work. */
export interface ToolOptions {
  /** Where commands run and relative paths begin. Not a fence: the sandbox itself is that. Default `/workspace`. */
  root?: string | undefined;
  /** Seconds that a command may take. Default 300. */
  timeoutSeconds?: number | undefined;
  /** Characters of an answer; the middle of what is longer is left out. Default 20,000. */
  maxOutputChars?: number | undefined;
}

/** The names of the tools. */
export type ToolName = "runtime_exec" | "runtime_read_file" | "runtime_write_file" | "runtime_list_files";

/** An object of named values, as JSON Schema says it. */
export interface ParameterSchema {
  type: "object";
  properties: Record<string, { type: "string" | "integer"; description: string; minimum?: number; maximum?: number }>;
  required: string[];
  additionalProperties: false;
}

/** A tool: what a model is told about it. */
export interface ToolDefinition {
  name: ToolName;
  description: string;
  parameters: ParameterSchema;
}

type Arguments = Record<string, unknown>;
type Run = (args: Arguments, signal: AbortSignal | undefined) => Promise<unknown>;

/** A tool as this package knows it. @internal */
export interface Tool extends ToolDefinition {
  run: Run;
}

const MOST_LEVELS = 8;
/** A character takes four bytes at most. */
const BYTES_PER_CHAR = 4;

/** The tools of a sandbox. @internal */
export function makeTools(sandbox: Sandbox, options: ToolOptions): Tool[] {
  const { root = "/workspace", timeoutSeconds = 300, maxOutputChars = 20_000 } = options;
  const at = (path: string): string => (path.startsWith("/") ? path : `${root.replace(/\/$/, "")}/${path}`);
  return [
    {
      name: "runtime_exec",
      description:
        `Run a bash command in a Linux sandbox, in ${root}. Answers its exit code and output. It may take ` +
        `${String(timeoutSeconds)} seconds; what it leaves running in the background is ended with it.`,
      parameters: schema({ command: { type: "string", description: "A line for bash -c." } }, ["command"]),
      run: async (args, signal) => {
        const { exitCode, timedOut, outOfMemory, ...result } = await sandbox.exec(text(args, "command"), {
          cwd: root,
          timeoutMs: timeoutSeconds * 1000,
          signal,
        });
        // What a command says to stderr is mostly short: it gets a quarter, and what it leaves goes to stdout.
        const stderr = cap(result.stderr, Math.floor(maxOutputChars / 4));
        const stdout = cap(result.stdout, maxOutputChars - Math.min(stderr.text.length, maxOutputChars));
        const isCut = result.stdoutTruncated || result.stderrTruncated || stdout.leftOut + stderr.leftOut > 0;
        return {
          exit_code: exitCode,
          stdout: stdout.text,
          stderr: stderr.text,
          ...(timedOut ? { timed_out: true } : {}),
          ...(outOfMemory === undefined ? {} : { out_of_memory: outOfMemory.message }),
          ...(isCut ? { truncated: true } : {}),
        };
      },
    },
    {
      name: "runtime_read_file",
      description: `Read a text file of the sandbox. Relative paths begin in ${root}.`,
      parameters: schema({ path: { type: "string", description: "The file." } }, ["path"]),
      run: async (args, signal) => {
        const path = at(text(args, "path"));
        const { content, isCut } = await readHead(sandbox, path, maxOutputChars, signal);
        return { path, content, ...(isCut ? { truncated: true } : {}) };
      },
    },
    {
      name: "runtime_write_file",
      description: `Write a whole text file in the sandbox. Relative paths begin in ${root}.`,
      parameters: schema(
        {
          path: { type: "string", description: "The file; missing folders below /workspace are made." },
          content: { type: "string", description: "All of its text." },
        },
        ["path", "content"],
      ),
      run: async (args, signal) => {
        const path = at(text(args, "path"));
        const bytes = new TextEncoder().encode(text(args, "content"));
        await sandbox.files.write(path, bytes, { signal });
        return { path, bytes: bytes.length };
      },
    },
    {
      name: "runtime_list_files",
      description: `List files of the sandbox, with size and type. Relative paths begin in ${root}.`,
      parameters: schema(
        {
          path: { type: "string", description: `The folder. Default ${root}.` },
          depth: { type: "integer", description: "Levels below it. Default 1.", minimum: 1, maximum: MOST_LEVELS },
        },
        [],
      ),
      run: async (args, signal) => {
        const path = at(optionalText(args, "path") ?? root);
        const found = await sandbox.files.list(path, { depth: levels(args), signal });
        const entries: string[] = [];
        let chars = 0;
        for (const { type, size, path: name } of found) {
          const line = `${type} ${String(size)} ${name}`;
          chars += line.length + 1;
          if (chars > maxOutputChars) break;
          entries.push(line);
        }
        return { path, entries, ...(entries.length < found.length ? { left_out: found.length - entries.length } : {}) };
      },
    },
  ];
}

/** Runs a tool as a model asked for it; what is refused is told to the model, as it may know better. @internal */
export async function runTool(
  tools: readonly Tool[],
  name: string,
  given: unknown,
  signal?: AbortSignal,
): Promise<string> {
  try {
    const tool = tools.find((one) => one.name === name);
    if (tool === undefined) throw new BadArguments(`there is no tool ${JSON.stringify(name)}`);
    const args = parseArguments(given);
    const unknown = Object.keys(args).filter((key) => !(key in tool.parameters.properties));
    if (unknown.length > 0) throw new BadArguments(`${unknown.join(", ")}: no such argument`);
    return JSON.stringify(await tool.run(args, signal));
  } catch (error) {
    return JSON.stringify({ error: refusal(error) });
  }
}

class BadArguments extends Error {}

/** What a model can do something about; the rest is the program's. */
function refusal(error: unknown): { code: string; message: string; hint?: string } {
  if (error instanceof BadArguments) return { code: "invalid_arguments", message: error.message };
  const isRefused = error instanceof RuntimeError && (error.status === 0 ? isOwn(error) : isForModel(error.status));
  if (!isRefused) throw error;
  const { code, message, hint } = error;
  return { code, message, ...(hint === undefined ? {} : { hint }) };
}

function isOwn({ code }: RuntimeError): boolean {
  return code === "invalid_request" || code === "download_incomplete";
}

function isForModel(status: number): boolean {
  return status >= 400 && status < 500 && status !== 401 && status !== 402 && status !== 429;
}

function parseArguments(given: unknown): Arguments {
  let value = given;
  if (typeof given === "string") {
    try {
      value = given.trim() === "" ? {} : JSON.parse(given);
    } catch {
      throw new BadArguments("the arguments are not JSON");
    }
  }
  if (value === undefined || value === null) return {};
  if (!isObject(value)) throw new BadArguments("the arguments must be an object");
  return value;
}

/** Reads what a file begins with, without waiting for what is not shown. */
async function readHead(
  sandbox: Sandbox,
  path: string,
  mostChars: number,
  signal: AbortSignal | undefined,
): Promise<{ content: string; isCut: boolean }> {
  const decoder = new TextDecoder();
  const reader = (await sandbox.files.readStream(path, { signal })).getReader();
  let content = "";
  let bytes = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return { content: (content + decoder.decode()).slice(0, mostChars), isCut: content.length > mostChars };
    content += decoder.decode(value, { stream: true });
    bytes += value.length;
    if (content.length > mostChars || bytes > mostChars * BYTES_PER_CHAR) {
      await reader.cancel();
      return { content: content.slice(0, mostChars), isCut: true };
    }
  }
}

function schema(properties: ParameterSchema["properties"], required: string[]): ParameterSchema {
  return { type: "object", properties, required, additionalProperties: false };
}

function optionalText(args: Arguments, name: string): string | undefined {
  const value = args[name];
  if (value === undefined || value === null) return undefined;
  if (typeof value !== "string") throw new BadArguments(`${name} must be text`);
  return value;
}

function text(args: Arguments, name: string): string {
  const value = optionalText(args, name);
  if (value === undefined) throw new BadArguments(`${name} is missing`);
  return value;
}

function levels(args: Arguments): number {
  const depth = args["depth"] ?? 1;
  if (typeof depth === "number" && Number.isInteger(depth) && depth >= 1 && depth <= MOST_LEVELS) return depth;
  throw new BadArguments(`depth must be a whole number from 1 to ${String(MOST_LEVELS)}`);
}
