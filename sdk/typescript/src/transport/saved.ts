/**
 * The key of a login that a command line has saved for a server. A file that others could have written is as good as none.
 */

import { isObject } from "./answer.js";
import { builtin, environmentVariable } from "./environment.js";

const AUTH_ORIGIN = "https://withruntime.com";
const KEY = /^rtcloud_[0-9a-f-]{36}_[A-Za-z0-9_-]{43}$/;
const MAX_FILE = 4096;

interface Files {
  constants: { O_RDONLY: number; O_NOFOLLOW?: number };
  openSync: (path: string, flags: number) => number;
  fstatSync: (file: number) => { isFile: () => boolean; uid: number; mode: number; size: number };
  readFileSync: (file: number, encoding: "utf8") => string;
  closeSync: (file: number) => void;
}
interface Crypto {
  createHash: (name: string) => { update: (text: string) => { digest: (form: "hex") => string } };
}

/** The saved key for this origin, where there are files and one of them holds it. */
export function savedKey(origin: string): string | undefined {
  const files = builtin("node:fs") as Files | undefined;
  const hash = builtin("node:crypto") as Crypto | undefined;
  const home = environmentVariable("HOME");
  const config = environmentVariable("XDG_CONFIG_HOME") ?? (home === undefined ? undefined : `${home}/.config`);
  if (files === undefined || hash === undefined || config === undefined || config === "") return undefined;
  const auth = environmentVariable("RUNTIME_AUTH_URL") ?? AUTH_ORIGIN;
  const name = hash.createHash("sha256").update(`${auth}\n${origin}`).digest("hex");
  const saved = read(files, `${config}/runtime-cloud/${name}.json`);
  if (!isObject(saved) || saved["version"] !== 1 || saved["apiOrigin"] !== origin) return undefined;
  const { key } = saved;
  return typeof key === "string" && KEY.test(key) ? key : undefined;
}

function read(files: Files, path: string): unknown {
  let file: number | undefined;
  try {
    file = files.openSync(path, files.constants.O_RDONLY | (files.constants.O_NOFOLLOW ?? 0));
    const about = files.fstatSync(file);
    const user = (globalThis as { process?: { getuid?: () => number } }).process?.getuid?.();
    const isMine = user === undefined || (about.uid === user && (about.mode & 0o077) === 0);
    if (!about.isFile() || !isMine || about.size > MAX_FILE) return undefined;
    return JSON.parse(files.readFileSync(file, "utf8"));
  } catch {
    return undefined;
  } finally {
    if (file !== undefined) files.closeSync(file);
  }
}
