import { createServer, connect as dial, type AddressInfo, type Socket } from "node:net";
import { afterEach, beforeAll, describe, expect, test } from "vitest";

import {
  AuthenticationError,
  ConnectionError,
  InvalidRequestError,
  NotFoundError,
  RuntimeError,
  Sandbox,
  type TerminalOptions,
} from "../../src/index.js";
import { box, client, failure } from "../support/runtime.js";

let sandbox: Sandbox;
beforeAll(async () => {
  sandbox = await box();
});

const platform = Object.getOwnPropertyDescriptor(globalThis, "WebSocket");
const ways = [["over Node's HTTP client", false] as const, ["over the platform's WebSocket", true] as const];
afterEach(() => {
  if (platform !== undefined) Object.defineProperty(globalThis, "WebSocket", platform);
});

/** A terminal, and all that it said. */
async function watched(options: TerminalOptions = {}) {
  const said = { text: "" };
  const decoder = new TextDecoder();
  const terminal = await sandbox.terminal({
    ...options,
    onData: (bytes) => (said.text += decoder.decode(bytes, { stream: true })),
  });
  return { terminal, said };
}

describe.each(ways)("%s", (_, isPlatform) => {
  // Node.js before 22 has none.
  const here = test.skipIf(isPlatform && platform === undefined);
  const choose = (): void => {
    if (!isPlatform) Reflect.deleteProperty(globalThis, "WebSocket");
  };

  here("a terminal shows what is typed, has a size, and ends with its program", async () => {
    choose();
    const { terminal, said } = await watched({ cols: 100, rows: 30, command: "bash --norc", cwd: "/tmp" });
    terminal.write("stty size; pwd\n");
    await expect.poll(() => said.text).toContain("30 100\r\n/tmp\r\n");
    terminal.resize(132, 43);
    terminal.write("stty size; echo ü€\n");
    await expect.poll(() => said.text).toContain("43 132\r\nü€\r\n");
    expect((await sandbox.processes.get(terminal.processId)).info).toMatchObject({ pty: true, state: "running" });
    terminal.write(`${"#".repeat(3000)}\nexit 7\n`);
    expect(await terminal.exited).toBe(7);
    terminal.write("into nothing");
  });

  here("a terminal is shown a second time, and a shell goes with the one that started it", async () => {
    choose();
    const first = await watched();
    first.terminal.write("echo o''ne\n");
    await expect.poll(() => first.said.text).toContain("one\r\n");
    const second = await watched({ processId: first.terminal.processId });
    await expect.poll(() => second.said.text).toContain("one\r\n");
    expect(second.terminal.processId).toBe(first.terminal.processId);
    second.terminal.close();
    expect(await second.terminal.exited).toBeNull();
    first.terminal.write("echo t''wo\n");
    await expect.poll(() => first.said.text).toContain("two\r\n");
    first.terminal.close();
    const shell = await sandbox.processes.get(first.terminal.processId);
    await expect.poll(async () => (await shell.refresh()).state).not.toBe("running");
  });

  here("a shell that another terminal shows outlives the one that started it", async () => {
    choose();
    const first = await watched();
    const { processId } = first.terminal;
    const second = await watched({ processId });
    first.terminal.close();
    expect(await first.terminal.exited).toBeNull();
    second.terminal.write("echo t''wo; exit 4\n");
    await expect.poll(() => second.said.text).toContain("two\r\n");
    expect(await second.terminal.exited).toBe(4);
  });

  here("what is refused says why", async () => {
    choose();
    const unknown = await failure(sandbox.terminal({ processId: "none" }), NotFoundError);
    expect(unknown).toMatchObject({ code: "terminal_refused", status: 404, details: { code: "not_found" } });
    const other = Sandbox.fromSession({ token: "rtsess_no", sandboxId: sandbox.id, apiUrl: client().transport.origin });
    expect(await failure(other.terminal(), AuthenticationError)).toMatchObject({ code: "unauthorized" });
    const nobody = client({ baseUrl: "http://127.0.0.1:9" });
    const away = Sandbox.fromSession({ token: "k", sandboxId: sandbox.id, apiUrl: nobody.transport.origin });
    expect(await failure(away.terminal(), ConnectionError)).toMatchObject({ code: "connection_error", status: 0 });
    expect(await failure(sandbox.terminal({ signal: AbortSignal.abort() }), ConnectionError)).toMatchObject({
      code: "timeout",
    });
  });

  here("many bytes go both ways through a tunnel, and either side may end first", async () => {
    choose();
    const echo = await sandbox.spawn(["python3", "-c", ECHO], {});
    await expect.poll(async () => (await sandbox.exec("cat /tmp/echo-port")).stdout).toMatch(/^\d+$/);
    const port = Number((await sandbox.exec("cat /tmp/echo-port")).stdout);
    await using tunnel = await sandbox.tunnel();
    const connection = await tunnel.connect(port);
    const sent = crypto.getRandomValues(new Uint8Array(65_536));
    const times = 80;
    const received = new Response(connection.readable).arrayBuffer();
    for (let i = 0; i < times; i += 1) await connection.write(sent);
    connection.end();
    const bytes = Buffer.from(await received);
    expect(bytes.length).toBe(times * sent.length);
    expect(bytes.subarray(-sent.length).equals(sent)).toBe(true);

    const refused = await failure(tunnel.connect(9), ConnectionError);
    expect(refused).toMatchObject({ code: "tunnel_refused", details: { reason: "closed" } });
    const second = await tunnel.connect(port);
    tunnel.close();
    await tunnel.closed;
    expect(await failure(second.write("late"), RuntimeError)).toMatchObject({ code: "tunnel_failed" });
    await expect(new Response(second.readable).text()).rejects.toThrow();
    await echo.kill("SIGKILL");
  });
});

const ECHO = `
import socket, threading
listener = socket.create_server(("127.0.0.1", 0))
open("/tmp/echo-port", "w").write(str(listener.getsockname()[1]))
def serve(connection):
    while data := connection.recv(65536):
        connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],)).start()
`;

test("a process with a terminal is typed into, resized and ended", async () => {
  const process = await sandbox.spawn("stty size; read line; stty size; echo got $line; cat", {
    pty: { cols: 90, rows: 20 },
  });
  const text = async (): Promise<string> => {
    let said = "";
    for await (const event of process.output({ signal: AbortSignal.timeout(200_000) })) {
      if (event.type === "stdout") said += event.data;
      if (said.includes("got it")) break;
    }
    return said;
  };
  const said = text();
  await expect.poll(async () => (await process.refresh()).info.outputBytes).toBeGreaterThan(0);
  await process.resize(70, 10);
  await process.write("it\n");
  expect(await said).toMatch(/20 90\r\n[^]*10 70\r\ngot it/);
  // The end of input, as a terminal knows it.
  await process.write("\x04");
  expect((await process.wait()).exitCode).toBe(0);
  const piped = await sandbox.spawn(["cat"], { stdin: "pipe" });
  expect(await failure(piped.resize(1, 1), InvalidRequestError)).toMatchObject({ code: "invalid_request" });
  await piped.kill("SIGKILL");
});

test("a port here leads to one of the sandbox, for many connections", async () => {
  await sandbox.files.write("/tmp/site/hello.txt", "from inside").catch(async () => {
    await sandbox.files.mkdir("/tmp/site");
    await sandbox.files.write("/tmp/site/hello.txt", "from inside");
  });
  const server = await sandbox.spawn("cd /tmp/site && exec python3 -m http.server 8123 --bind 127.0.0.1");
  const forward = await sandbox.forwardPort(8123, { localPort: 0 });
  try {
    expect(forward).toMatchObject({ host: "127.0.0.1", port: 8123 });
    const url = `http://127.0.0.1:${String(forward.localPort)}/hello.txt`;
    await expect.poll(async () => await fetch(url).then((answer) => answer.text(), String)).toBe("from inside");
    const all = await Promise.all(Array.from({ length: 12 }, async () => (await fetch(url)).text()));
    expect(new Set(all)).toEqual(new Set(["from inside"]));
    const taken = await failure(sandbox.forwardPort(8123, { localPort: forward.localPort }), RuntimeError);
    expect(taken).toMatchObject({ code: "tunnel_failed", hint: expect.stringContaining("localPort") as string });
  } finally {
    await forward.close();
    await server.kill("SIGKILL");
  }
  await expect(fetch(`http://127.0.0.1:${String(forward.localPort)}/`)).rejects.toThrow();
});

test("a connection that the sandbox refuses is cut here, and told", async () => {
  const errors: unknown[] = [];
  await using forward = await sandbox.forwardPort(9, { localPort: 0, onError: (error) => errors.push(error) });
  const socket: Socket = dial(forward.localPort, forward.host);
  await new Promise((resolve) => socket.on("close", resolve));
  expect(errors).toEqual([expect.objectContaining({ code: "tunnel_refused" })]);
});

test("a server that breaks off before it is ready is refused", async () => {
  const server = createServer((socket) => socket.destroy()).listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  const { port } = server.address() as AddressInfo;
  const apiUrl = `http://127.0.0.1:${String(port)}`;
  const away = Sandbox.fromSession({ token: "k", sandboxId: sandbox.id, apiUrl });
  expect(await failure(away.tunnel(), ConnectionError)).toMatchObject({ code: "connection_error" });
  server.close();
});
