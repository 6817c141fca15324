import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    // Two cores, and the sandboxes of the tests share them.
    maxWorkers: 2,
    projects: [
      {
        test: { name: "unit", include: ["test/unit/**/*.test.ts"], testTimeout: 120_000 },
      },
      {
        test: {
          name: "server",
          include: ["test/server/**/*.test.ts"],
          globalSetup: ["test/support/server.ts"],
          // Sandboxes start, and two cores serve all of them. These only catch what hangs.
          testTimeout: 300_000,
          expect: { poll: { timeout: 120_000 } },
          hookTimeout: 300_000,
        },
      },
      {
        test: {
          name: "types",
          include: [],
          typecheck: {
            enabled: true,
            only: true,
            include: ["test/types/**/*.test-d.ts"],
            tsconfig: "tsconfig.json",
          },
        },
      },
    ],
  },
});
