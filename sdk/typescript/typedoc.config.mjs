// The reference of all that the package exports, as pages in docs/: npm run docs. A link in a comment that leads nowhere
// fails it.

import { OptionDefaults } from "typedoc";

/** @type {Partial<import("typedoc").TypeDocOptions>} */
export default {
  name: "withruntime",
  entryPoints: ["src/index.ts", "src/tools/index.ts"],
  tsconfig: "tsconfig.src.json",
  out: "docs",
  readme: "README.md",
  excludeInternal: true,
  excludePrivate: true,
  disableSources: true,
  githubPages: false,
  // What the API's description says about its records comes under these.
  blockTags: [...OptionDefaults.blockTags, "@description", "@format"],
  treatWarningsAsErrors: true,
  validation: { notExported: false, invalidLink: true, notDocumented: false },
};
