// Holds calls and answers against Discord's description of its API, as the package discord-api-spec carries it: paths
// and statuses from its types, bodies and answers by its schemas. Reads [{method, path, given, status, content}…] from
// standard input and prints a line for each thing that the description does not know.
//
//   node discord_described.mjs FOLDER_WITH_NODE_MODULES
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const build = join(process.argv[2], "node_modules", "discord-api-spec", "build");
const schemas = await import(pathToFileURL(join(build, "discord-api-spec.zod.js")));
const types = readFileSync(join(build, "discord-api-spec.ts"), "utf8");

/** Every operation: its method, its path as a pattern, and the types of its body and of its answers by status. */
function operations() {
  const found = [];
  for (const [, path, methods] of types.matchAll(/\n {2}"(\/[^"]*)": \{\n([\s\S]*?)\n {2}\};/g)) {
    const pattern = new RegExp(`^${path.replace(/\{\w+\}/g, "[^/]+")}$`);
    for (const [, method, text] of methods.matchAll(/ {4}(\w+): \{\n([\s\S]*?)\n {4}\};/g)) {
      const body = text.match(/\n {6}requestBody\?:([\s\S]*?);\n {6}responses:/)[1];
      const answers = {};
      for (const [, status, type] of text.matchAll(/\n {8}"(\w+)":([\s\S]*?);(?=\n)/g)) answers[status] = type;
      found.push({ method: method.toUpperCase(), path, pattern, body, answers });
    }
  }
  return found;
}

/** The operation of a call; where several fit, the one with the fewest parameters. */
function operation(known, call) {
  const fitting = known.filter((one) => one.method === call.method && one.pattern.test(call.path));
  return fitting.sort((a, b) => a.path.split("{").length - b.path.split("{").length)[0];
}

/** What is wrong with a value of a type such as `A | B[] | null`: for the alternative that it comes nearest to. */
function problems(type, value) {
  const names = type.replace(/\s+/g, " ").split("|").map((name) => name.trim()).filter(Boolean);
  if (names.includes("undefined") || names.includes("unknown")) {
    return value === null || Object.keys(value).length === 0 ? [] : [": nothing was expected"];
  }
  const tried = names.filter((name) => name !== "null").map((name) => checked(name, value));
  return tried.sort((a, b) => a.length - b.length)[0];
}

function checked(name, value) {
  if (name.endsWith("[]")) {
    if (!Array.isArray(value)) return [": a list was expected"];
    return value.flatMap((one) => checked(name.slice(0, -2), one));
  }
  const schema = schemas[`${name}Schema`];
  if (schema === undefined) throw new Error(`the description has no schema ${name}`);
  const plain = dated(value);
  const result = schema.safeParse(plain);
  if (!result.success) return result.error.issues.flatMap((issue) => worded(issue, name));
  return unknown(plain, result.data, name);
}

function worded(issue, name) {
  const place = [name, ...issue.path].join(".");
  const inner = (issue.errors ?? []).flat().map((one) => `${one.path.join(".")}: ${one.message}`);
  return [`${place}: ${issue.message}${inner.length ? ` (${inner.join("; ")})` : ""}`];
}

/** Times as the schemas want them: Discord writes UTC as an offset, which they do not take. */
function dated(value) {
  if (typeof value === "string") return value.replace(/^(\d{4}-\d\d-\d\dT[\d:.]+)\+00:00$/, "$1Z");
  if (Array.isArray(value)) return value.map(dated);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, dated(one)]));
}

/** Fields, at any depth, that the schema took no notice of. */
function unknown(given, taken, place) {
  if (Array.isArray(given)) return given.flatMap((one, index) => unknown(one, taken[index], `${place}[]`));
  if (given === null || typeof given !== "object") return [];
  return Object.entries(given).flatMap(([key, one]) =>
    key in taken ? unknown(one, taken[key], `${place}.${key}`) : [`${place}.${key} is unknown`],
  );
}

const known = operations();
const lines = new Set();
for (const call of JSON.parse(readFileSync(0, "utf8"))) {
  const found = operation(known, call);
  const name = found === undefined ? `${call.method} ${call.path}` : `${call.method} ${found.path}`;
  const say = (problem) => lines.add(`${name} ${problem}`);
  if (found === undefined) say("is not described");
  else if (!(call.status in found.answers)) say(`is not answered ${call.status}`);
  else {
    problems(found.body, call.given).forEach((problem) => say(`asked ${problem}`));
    problems(found.answers[call.status], call.content).forEach((problem) => say(`answered ${problem}`));
  }
}
for (const line of lines) console.log(line);
