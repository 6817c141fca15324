// What the package exports, as text that a change shows up in: etc/<entry>.api.md. With --check only compares.

import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { Extractor, ExtractorConfig } from "@microsoft/api-extractor";

const here = join(import.meta.dirname, "..");
const isCheck = process.argv.includes("--check");
const temporary = join(here, "node_modules/.api-report");
mkdirSync(join(here, "etc"), { recursive: true });
mkdirSync(temporary, { recursive: true });
// The tool reads its compiler's settings from a file; it needs only to see the declarations.
const tsconfig = join(temporary, "tsconfig.json");
writeFileSync(
  tsconfig,
  JSON.stringify({
    extends: join(here, "tsconfig.src.json"),
    compilerOptions: { rootDir: here, noEmit: true },
    include: [join(here, "dist/**/*.d.ts")],
    exclude: [],
  }),
);

let isGood = true;
for (const [name, entry] of [
  ["withruntime", "dist/index.d.ts"],
  ["withruntime-tools", "dist/tools/index.d.ts"],
]) {
  const config = ExtractorConfig.prepare({
    configObject: {
      projectFolder: here,
      mainEntryPointFilePath: join(here, entry),
      compiler: { tsconfigFilePath: tsconfig },
      newlineKind: "lf",
      apiReport: {
        enabled: true,
        reportFileName: `${name}.api.md`,
        reportFolder: join(here, "etc"),
        reportTempFolder: temporary,
      },
      docModel: { enabled: false },
      dtsRollup: { enabled: false },
      tsdocMetadata: { enabled: false },
      messages: {
        extractorMessageReporting: {
          default: { logLevel: "warning", addToApiReportFile: false },
          // No tag says release or beta here: what is exported is released.
          "ae-missing-release-tag": { logLevel: "none" },
          "ae-unresolved-link": { logLevel: "none" },
          // A field whose name says all needs no sentence.
          "ae-undocumented": { logLevel: "none" },
          // The records of the API are told by its own description.
          "ae-forgotten-export": { logLevel: "none" },
        },
        tsdocMessageReporting: { default: { logLevel: "none" } },
      },
    },
    configObjectFullPath: undefined,
    packageJsonFullPath: join(here, "package.json"),
  });
  const { succeeded, apiReportChanged } = Extractor.invoke(config, {
    localBuild: !isCheck,
    messageCallback: (message) => {
      if (message.messageId.startsWith("console-")) message.handled = message.logLevel !== "error";
    },
  });
  if (isCheck && apiReportChanged) console.error(`etc/${name}.api.md is not what ${entry} exports: npm run report`);
  isGood &&= succeeded && !(isCheck && apiReportChanged);
}
rmSync(temporary, { recursive: true, force: true });
process.exit(isGood ? 0 : 1);
