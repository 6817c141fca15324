/** What a scenario expects, compared with what came: the rules of `sdk/scenarios/README.md`. */

type Rule = (value: unknown, argument: unknown, look: (path: string) => unknown) => boolean;

const RULES: Record<string, Rule> = {
  $type: (value, type) => typeOf(value) === type,
  $matches: (value, pattern) => typeof value === "string" && new RegExp(pattern as string, "u").test(value),
  $length: (value, length) =>
    (typeof value === "string" ? Array.from(value).length : (value as unknown[]).length) === length,
  $contains: (value, part, look) =>
    typeof value === "string"
      ? value.includes(part as string)
      : (value as unknown[]).some((one) => differences(one, part, look).length === 0),
  $not: (value, rule, look) => differences(value, rule, look).length > 0,
  $absent: (value, isAbsent) => (value === undefined || value === null) === isAbsent,
  $from: (value, path, look) => JSON.stringify(value) === JSON.stringify(look(path as string)),
};

/** Where a value is not what was expected; empty if it is. */
export function differences(value: unknown, expected: unknown, look: (path: string) => unknown, at = "it"): string[] {
  if (Array.isArray(expected)) {
    if (!Array.isArray(value)) return [`${at} is no list: ${show(value)}`];
    if (value.length !== expected.length) {
      return [`${at} has ${String(value.length)} items, not ${String(expected.length)}`];
    }
    return expected.flatMap((one, i) => differences(value[i], one, look, `${at}[${String(i)}]`));
  }
  if (typeof expected === "object" && expected !== null) {
    const entries = Object.entries(expected);
    const [name, argument] = entries[0] ?? [];
    if (entries.length === 1 && name?.startsWith("$") === true) {
      const rule = RULES[name];
      if (rule === undefined) throw new Error(`there is no rule ${name}`);
      return rule(value, argument, look) ? [] : [`${at} is ${show(value)}, not ${JSON.stringify(expected)}`];
    }
    const object = (value ?? {}) as Record<string, unknown>;
    return entries.flatMap(([key, one]) => differences(object[key], one, look, `${at}.${key}`));
  }
  // A key that is not sent and a null say the same.
  return (value ?? null) === expected ? [] : [`${at} is ${show(value)}, not ${JSON.stringify(expected)}`];
}

function typeOf(value: unknown): string {
  if (value === null || value === undefined) return "null";
  return Array.isArray(value) ? "array" : typeof value;
}

/** A value for a message; the whole of a long one helps nobody. */
function show(value: unknown): string {
  const text = JSON.stringify(value ?? null);
  return text.length <= 500 ? text : `${text.slice(0, 500)}… (${String(text.length)} characters)`;
}
