import { build, type Rolldown } from "vite";

/** The package as a bundler for browsers makes it of `entry`, and what it would have had to leave out. */
export async function browserBundle(entry: string): Promise<{ code: string; outside: string[] }> {
  const outside: string[] = [];
  const made = await build({
    configFile: false,
    logLevel: "silent",
    build: { write: false, minify: false, lib: { entry, formats: ["es"], fileName: "withruntime" } },
    plugins: [
      {
        name: "what-is-not-ours",
        enforce: "pre",
        resolveId: (id) => {
          if (!/^[./]/.test(id)) outside.push(id);
        },
      },
    ],
  });
  // What it answers when it watches has no output.
  const [first] = (Array.isArray(made) ? made : [made]) as Rolldown.RolldownOutput[];
  const [chunk] = first?.output ?? [];
  if (chunk === undefined) throw new Error("the bundler made nothing");
  return { code: chunk.code, outside };
}
