// Types of the API, out of its committed description. With --check only compares.

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import openapiTS, { astToString } from "openapi-typescript";

const here = join(import.meta.dirname, "..");
const out = join(here, "src/generated/api.ts");
const document = JSON.parse(readFileSync(join(here, "../../openapi/openapi.json"), "utf8"));
// Its operations are not all named apart, and only the schemas are used here.
for (const operations of Object.values(document.paths)) {
  for (const operation of Object.values(operations)) delete operation.operationId;
}
// A field with a default may be left out of a request all the same.
const types = astToString(await openapiTS(document, { defaultNonNullable: false }));
const text = `// Generated from openapi/openapi.json by scripts/generate.mjs. Do not edit.\n\n${types}`;

if (!process.argv.includes("--check")) {
  writeFileSync(out, text);
} else if (readFileSync(out, "utf8") !== text) {
  console.error("src/generated/api.ts is not what openapi/openapi.json says: npm run generate");
  process.exit(1);
}
