// Writes src/generated.ts from the server's OpenAPI document: the types of every request, answer and stream event, and
// the method and path of every operation. With --check it only compares, and exits with 1 if the file is out of date.

import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const file = (path) => fileURLToPath(new URL(path, import.meta.url));
const OUTPUT = file("../src/generated.ts");
const document = JSON.parse(readFileSync(file("../../../docs/openapi.json"), "utf8"));

/** Requests that the server answers in the same way when they are repeated as they are, besides those that only read. */
const REPEATABLE = ["answerPermission", "answerToolCall"];

const quoted = (name) => (/^[A-Za-z_$][\w$]*$/.test(name) ? name : JSON.stringify(name));
const referenced = (ref) => ref.split("/").at(-1);
const union = (types) => [...new Set(types)].join(" | ");

function comment(text, indent) {
  if (!text) return "";
  const lines = text.replaceAll("*/", "*\\/").split("\n");
  return lines.length === 1
    ? `${indent}/** ${lines[0]} */\n`
    : `${indent}/**\n${lines.map((line) => `${indent} * ${line}\n`).join("")}${indent} */\n`;
}

function typeOf(schema, indent) {
  if (schema.$ref) return referenced(schema.$ref);
  const forms = schema.oneOf ?? schema.anyOf;
  if (forms) return union(forms.map((form) => typeOf(form, indent)));
  if (schema.enum) return union(schema.enum.map((value) => JSON.stringify(value)));
  if ("const" in schema) return JSON.stringify(schema.const);
  if (Array.isArray(schema.type)) return union(schema.type.map((type) => typeOf({ ...schema, type }, indent)));
  switch (schema.type) {
    case undefined:
      return "unknown";
    case "string":
      return schema.format === "binary" ? "Blob" : "string";
    case "integer":
    case "number":
      return "number";
    case "boolean":
      return "boolean";
    case "null":
      return "null";
    case "array":
      return arrayOf(typeOf(schema.items ?? {}, indent));
    case "object":
      return objectType(schema, indent);
    default:
      throw new Error(`A schema has a type that this script does not know: ${JSON.stringify(schema)}`);
  }
}

const arrayOf = (item) => (/[ |{]/.test(item) ? `Array<${item}>` : `${item}[]`);

function objectType(schema, indent) {
  const { properties, additionalProperties } = schema;
  if (properties) return `{\n${fields(schema, `${indent}  `)}${indent}}`;
  if (additionalProperties === false) return "Record<string, never>";
  return `Record<string, ${typeOf(additionalProperties ?? {}, indent)}>`;
}

// An optional field may also be `undefined`, so that callers can pass a value on without asking first.
function fields({ properties, required = [] }, indent) {
  const lines = Object.entries(properties).map(([name, schema]) => {
    const type = typeOf(schema, indent);
    const field = required.includes(name) ? `${quoted(name)}: ${type}` : `${quoted(name)}?: ${type} | undefined`;
    return `${comment(schema.description, indent)}${indent}${field};\n`;
  });
  return lines.join("");
}

function declaration(name, schema) {
  const head = comment(schema.description, "");
  return schema.type === "object" && schema.properties
    ? `${head}export interface ${name} {\n${fields(schema, "  ")}}\n`
    : `${head}export type ${name} = ${typeOf(schema, "")};\n`;
}

function jsonType(contents) {
  const schema = contents?.["application/json"]?.schema;
  return schema ? typeOf(schema, "    ") : undefined;
}

function queryType(parameters) {
  const properties = {};
  for (const { name, in: place, schema, description } of parameters) {
    if (place === "query" && name !== "metadata.NAME") properties[name] = { ...schema, description };
  }
  return Object.keys(properties).length === 0 ? "undefined" : `{\n${fields({ properties }, "      ")}    }`;
}

function operations() {
  const shapes = [];
  const routes = [];
  for (const [path, methods] of Object.entries(document.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const { operationId, summary, parameters = [], requestBody, responses } = operation;
      const success = Object.entries(responses).find(([status]) => status.startsWith("2"))?.[1];
      const keyed = parameters.some(({ name }) => name === "Idempotency-Key");
      shapes.push(
        `${comment(summary, "  ")}  ${operationId}: {\n` +
          `    query: ${queryType(parameters)};\n` +
          `    body: ${jsonType(requestBody?.content) ?? "undefined"};\n` +
          `    answer: ${jsonType(success?.content) ?? "undefined"};\n  };\n`,
      );
      const idempotent = method === "get" || REPEATABLE.includes(operationId);
      routes.push(
        `  ${operationId}: { method: "${method.toUpperCase()}", path: "${path}", idempotent: ${idempotent}, keyed: ${keyed} },\n`,
      );
    }
  }
  return { shapes: shapes.join(""), routes: routes.join("") };
}

function generate() {
  const schemas = Object.entries(document.components.schemas).map(([name, schema]) => declaration(name, schema));
  const { shapes, routes } = operations();
  return `// The types of the server's API. Made from openapi.json by scripts/generate.mjs: do not edit.

${schemas.join("\n")}
/** The query, the body and the answer of every operation. */
export interface Operations {
${shapes}}

/** Where every operation is, and whether a request may be repeated: as it is, or with an Idempotency-Key. */
export const operations = {
${routes}} as const;
`;
}

const wanted = generate();
if (process.argv.includes("--check")) {
  let found = "";
  try {
    found = readFileSync(OUTPUT, "utf8");
  } catch {}
  if (found !== wanted) {
    console.error("src/generated.ts is out of date: run `npm run generate`");
    process.exit(1);
  }
} else {
  writeFileSync(OUTPUT, wanted);
}
