/** The way through a proxy: a program of its own, since what it trusts and which proxy it has are settled at its start. */

import { execFile, execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer, type IncomingMessage } from "node:http";
import { connect, type AddressInfo, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { createServer as createTlsServer } from "node:tls";
import { afterAll, beforeAll, expect, inject, test } from "vitest";

import { box } from "../support/runtime.js";

const here = fileURLToPath(new URL("../..", import.meta.url));
const tsx = join(here, "node_modules/tsx/dist/cli.mjs");
let place: string;
let origin: string;
let proxy: string;
const asked: { target: string; authorization: string | undefined }[] = [];
const servers: Server[] = [];

async function listening(server: Server): Promise<number> {
  servers.push(server);
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return (server.address() as AddressInfo).port;
}

function joined(one: Socket, other: Socket): void {
  one.on("error", () => other.destroy()).pipe(other);
  other.on("error", () => one.destroy()).pipe(one);
}

beforeAll(async () => {
  place = mkdtempSync(join(tmpdir(), "withruntime-proxy-"));
  const [key, cert] = [join(place, "key.pem"), join(place, "cert.pem")];
  const made = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"];
  execFileSync("openssl", [...made, "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert], {
    stdio: "ignore",
  });
  const api = Number(new URL(inject("url")).port);
  const tls = createTlsServer({ key: readFileSync(key), cert: readFileSync(cert) }, (socket) => {
    joined(socket, connect(api, "127.0.0.1"));
  });
  origin = `https://localhost:${String(await listening(tls))}`;
  const through = createServer();
  through.on("connect", (request: IncomingMessage, socket: Socket) => {
    asked.push({ target: request.url ?? "", authorization: request.headers["proxy-authorization"] });
    const way = connect(Number(new URL(`http://${request.url ?? ""}`).port), "127.0.0.1", () => {
      socket.write("HTTP/1.1 200 Connection established\r\n\r\n");
      joined(socket, way);
    });
  });
  proxy = `127.0.0.1:${String(await listening(through))}`;
  const program = `
    import { Sandbox } from "${join(here, "src/index.ts")}";
    const sandbox = await Sandbox.connect(process.argv[2]!);
    const { stdout } = await sandbox.exec("echo there");
    let said = "";
    const terminal = await sandbox.terminal({
      command: "echo seen; exit 4", onData: (bytes) => (said += new TextDecoder().decode(bytes)),
    });
    console.log(stdout.trim(), await terminal.exited, said.trim());
  `;
  writeFileSync(join(place, "program.mts"), program);
});

afterAll(() => {
  for (const server of servers) server.close();
  rmSync(place, { recursive: true, force: true });
});

function run(id: string, variables: Record<string, string>): Promise<string> {
  const env = {
    PATH: process.env["PATH"],
    NODE_EXTRA_CA_CERTS: join(place, "cert.pem"),
    RUNTIME_API_URL: origin,
    RUNTIME_API_KEY: inject("key"),
    ...variables,
  };
  return new Promise((resolve) => {
    execFile(
      process.execPath,
      [tsx, join(place, "program.mts"), id],
      { cwd: here, env, timeout: 250_000 },
      (_, out, err) => {
        resolve(out === "" ? err : out);
      },
    );
  });
}

test("calls and sockets go through the proxy, and past it where they are told", async () => {
  const { id } = await box();
  expect(await run(id, { HTTPS_PROXY: `http://me:pass@${proxy}` })).toBe("there 4 seen\n");
  const target = new URL(origin).host;
  const authorization = `Basic ${Buffer.from("me:pass").toString("base64")}`;
  expect(asked.length).toBeGreaterThanOrEqual(2);
  expect(new Set(asked.map((one) => JSON.stringify(one)))).toEqual(
    new Set([JSON.stringify({ target, authorization })]),
  );
  const before = asked.length;
  expect(await run(id, { HTTPS_PROXY: `http://${proxy}`, NO_PROXY: "localhost" })).toBe("there 4 seen\n");
  expect(asked.length).toBe(before);
});

test("one that cannot be used is named without its password", async () => {
  const failed = await run("x", { https_proxy: "socks5://me:secret@127.0.0.1:1" });
  expect(failed).toContain("invalid_proxy");
  expect(failed).not.toContain("secret");
});
