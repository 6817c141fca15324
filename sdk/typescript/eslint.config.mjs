import tseslint from "typescript-eslint";

export default tseslint.config(
  { ignores: ["dist/", "docs/", "src/generated/"] },
  tseslint.configs.strictTypeChecked,
  tseslint.configs.stylisticTypeChecked,
  {
    languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } },
    rules: {
      // A field that is left out of the rest by its name is the point of it.
      "@typescript-eslint/no-unused-vars": ["error", { varsIgnorePattern: "^_", argsIgnorePattern: "^_" }],
      // The compiler asks for brackets where a name is not declared.
      "@typescript-eslint/dot-notation": "off",
    },
  },
  {
    files: ["src/**"],
    rules: {
      "@typescript-eslint/explicit-function-return-type": ["error", { allowExpressions: true }],
      "no-restricted-imports": ["error", { patterns: [{ group: ["node:*"], message: "src runs in browsers too." }] }],
      "no-restricted-globals": ["error", "process", "Buffer", "require"],
    },
  },
  {
    files: ["test/**"],
    rules: {
      // Tables of scenarios are data: their shape is what the server checks.
      "@typescript-eslint/no-explicit-any": "off",
      "@typescript-eslint/no-unsafe-argument": "off",
      "@typescript-eslint/no-unsafe-assignment": "off",
      "@typescript-eslint/no-unsafe-call": "off",
      "@typescript-eslint/no-unsafe-member-access": "off",
      "@typescript-eslint/no-unsafe-return": "off",
    },
  },
  {
    files: ["**/*.mjs"],
    extends: [tseslint.configs.disableTypeChecked],
  },
);
