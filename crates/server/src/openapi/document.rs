//! Puts the document together: paths and schemas from the handlers, texts and examples from the tables beside this file.

use super::{
    endpoint::{ApiRouter, Operation, OperationDraft},
    errors::{ApiErrorBody, ERROR_CODES},
    operations::RequestHeader,
    schemas,
};
use axum::http::StatusCode;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Requests, answers and frames of streams, by the id of the operation.
pub(super) const EXAMPLES: &str = include_str!("examples.json");

/// The document of the server's own table of routes.
pub(crate) fn of_the_api() -> Value {
    document(&crate::routes::api())
}

#[cfg(test)]
pub(crate) fn the_document() -> &'static Value {
    static DOCUMENT: std::sync::LazyLock<Value> = std::sync::LazyLock::new(of_the_api);
    &DOCUMENT
}

const INTRODUCTION: &str = "ash keeps AI-agent sessions alive. Every refusal is an `ApiError` with a `code` that never changes; \
`x-codes` of an answer lists those that can occur. An unknown path is 404 `route_not_found`, a method that \
a path does not have 405 `method_not_allowed`. Times are ISO 8601 in UTC. Text for numbers, one value for a list of one, and an empty body for `{}` are accepted.";

const TAGS: [(&str, &str); 13] = [
    ("Sessions", "Create, find and change sessions, and move them between states"),
    ("Messages", "Send messages, follow the events, read the history"),
    ("Permissions", "Permission requests and questions of agents"),
    ("Queue", "Messages that wait for their turn"),
    ("Locks", "Exclusive write access to a session"),
    ("Files", "Files, plan and documents of a session"),
    ("Checkpoints", "Saved states of a session"),
    ("Workspaces", "Files that several sessions share"),
    ("Agents", "What sessions run"),
    ("Usage", "Tokens and cost"),
    ("Retention", "Rules for unused sessions, and the audit log"),
    ("Keys", "Access of clients"),
    ("Server", "The server itself"),
];

fn document(api: &ApiRouter) -> Value {
    let examples: Map<String, Value> =
        serde_json::from_str(EXAMPLES).expect("the examples are JSON, as a test checks");
    let mut paths = Map::new();
    for operation in &api.operations {
        let path = operation.path.replace("{*", "{");
        let shown = described(operation, examples.get(operation.id));
        paths.entry(path).or_insert_with(|| json!({}))[operation.method] = shown;
    }
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "ash", "version": crate::VERSION, "description": INTRODUCTION,
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "security": [{ "apiKey": [] }],
        "tags": TAGS.map(|(name, description)| json!({ "name": name, "description": description })),
        "components": {
            "schemas": schemas::in_use(&Value::Object(paths.clone()), components(api)),
            "examples": error_examples(),
            "securitySchemes": {
                "apiKey": { "type": "http", "scheme": "bearer", "description": "An API key of the server." },
                "streamToken": {
                    "type": "apiKey", "in": "query", "name": "token",
                    "description": "A token of `POST /api/sessions/{id}/stream-token`, for the stream of that session.",
                },
                "internalSecret": { "type": "http", "scheme": "bearer", "description": "ASH_INTERNAL_SECRET of the server." },
            },
        },
    });
    document["paths"] = Value::Object(paths);
    document
}

fn components(api: &ApiRouter) -> BTreeMap<String, Value> {
    let mut all: BTreeMap<String, Value> =
        api.operations.iter().flat_map(|operation| operation.draft.schemas.clone()).collect();
    let mut errors = OperationDraft::default();
    errors.schema_of::<ApiErrorBody>();
    all.extend(errors.schemas);
    let strict = api.operations.iter().filter_map(|operation| operation.draft.body.as_ref());
    let strict: Vec<&str> =
        strict.filter(|body| body.strict).filter_map(|body| body.schema["$ref"].as_str()).collect();
    schemas::tidy(all, &strict)
}

fn described(operation: &Operation, examples: Option<&Value>) -> Value {
    let (draft, text) = (&operation.draft, operation.text());
    let mut shown = json!({
        "operationId": operation.id, "tags": [operation.tag],
        "summary": text.map_or("", |text| text.summary),
        "responses": responses(operation, examples),
    });
    if let Some(description) = text.map(|text| text.description).filter(|text| !text.is_empty()) {
        shown["description"] = json!(description);
    }
    let parameters = parameters(operation);
    if !parameters.is_empty() {
        shown["parameters"] = json!(parameters);
    }
    if let Some(body) = &draft.body {
        let mut content = json!({ "schema": body.schema });
        if let Some(example) = examples.and_then(|examples| examples.get("request")) {
            content["example"] = example.clone();
        }
        shown["requestBody"] = json!({ "content": { "application/json": content } });
        let name = body.schema["$ref"].as_str().and_then(|path| path.rsplit('/').next());
        let fields = name.and_then(|name| draft.schemas.get(name)).map(|schema| &schema["required"]);
        // An empty body counts as `{}`.
        if fields.and_then(Value::as_array).is_some_and(|required| !required.is_empty()) {
            shown["requestBody"]["required"] = json!(true);
        }
    }
    match () {
        () if operation.path.starts_with("/api/internal/") => {
            shown["security"] = json!([{ "internalSecret": [] }])
        }
        // With a key it says more.
        () if operation.id == "health" => shown["security"] = json!([{}, { "apiKey": [] }]),
        () if operation.id == "streamSession" => {
            shown["security"] = json!([{ "apiKey": [] }, { "streamToken": [] }])
        }
        () if !draft.needs_key => shown["security"] = json!([]),
        () => {}
    }
    shown
}

fn parameters(operation: &Operation) -> Vec<Value> {
    let names = operation.path.split('{').skip(1).filter_map(|rest| rest.split('}').next());
    let in_path = names.map(|name| path_parameter(operation.path, name.trim_start_matches('*')));
    let headers = operation
        .text()
        .into_iter()
        .flat_map(|text| text.headers.iter().map(|header| header.shown(operation.id)));
    in_path.chain(operation.draft.parameters.iter().map(schemas::without_noise)).chain(headers).collect()
}

fn path_parameter(path: &str, name: &str) -> Value {
    let (schema, description) = match name {
        "id" if path.starts_with("/api/api-keys") => (json!({ "type": "string" }), "The id of the key"),
        "id" if path.starts_with("/api/credentials") => {
            (json!({ "$ref": "#/components/schemas/CredentialId" }), "The id of the credential")
        }
        "id" => (json!({ "$ref": "#/components/schemas/SessionId" }), "The id of the session"),
        "name" => (json!({ "$ref": "#/components/schemas/AgentName" }), "The name of the agent"),
        "slug" => (json!({ "$ref": "#/components/schemas/Slug" }), "The name of the workspace"),
        "call" => (json!({ "$ref": "#/components/schemas/ToolRequestId" }), "The id of the call"),
        "permission" => {
            (json!({ "$ref": "#/components/schemas/PermissionId" }), "The id of the permission request")
        }
        "turn" => (json!({ "$ref": "#/components/schemas/TurnId" }), "The turn of the message"),
        "n" => {
            (json!({ "type": "integer", "format": "int64", "minimum": 0 }), "The number of the checkpoint")
        }
        _ => (json!({ "type": "string" }), "The path of the file; slashes need no escape"),
    };
    json!({ "name": name, "in": "path", "required": true, "description": description, "schema": schema })
}

impl RequestHeader {
    fn shown(self, operation: &str) -> Value {
        let (name, description, example) = match self {
            RequestHeader::IdempotencyKey => (
                "Idempotency-Key",
                "1 to 255 characters. A repeated request with the same key has the effect of one.",
                "5f1c0f3a-send-1",
            ),
            RequestHeader::Lock => {
                ("X-Ash-Lock", "The token of the session's lock, if the caller holds it.", "3.0f0e8a4d5c")
            }
            RequestHeader::Wait => (
                "Prefer",
                "`wait=SECONDS`: how long to wait when all sandboxes are busy, at most 600.",
                "wait=60",
            ),
            RequestHeader::LastEventId => {
                ("Last-Event-ID", "The id of the last frame that the client has, as `after`.", "12")
            }
        };
        let schema = json!({ "type": "string" });
        // A lock is released by its token alone; elsewhere only a locked session needs one.
        let required = operation == "releaseLock" && name == "X-Ash-Lock";
        json!({ "name": name, "in": "header", "required": required, "description": description, "schema": schema, "example": example })
    }
}

fn responses(operation: &Operation, examples: Option<&Value>) -> Map<String, Value> {
    let mut all = Map::new();
    for (status, content) in &operation.draft.answers {
        let description = if content.description.is_empty() { "Done" } else { content.description };
        let mut shown = json!({ "description": description });
        for (media, schema) in &content.media {
            let mut body = json!({ "schema": schemas::without_noise(schema) });
            let name = match *media {
                "application/json" => "response",
                "text/event-stream" => "frame",
                _ => "",
            };
            if let Some(example) = examples.and_then(|examples| examples.get(name)) {
                body["example"] = example.clone();
            }
            shown["content"][*media] = body;
        }
        if !content.headers.is_empty() {
            shown["headers"] = json!(content.headers);
        }
        all.insert(status.to_string(), shown);
    }
    let mut refusals: BTreeMap<u16, Vec<&str>> = BTreeMap::new();
    let codes = operation.codes();
    for (code, statuses, _) in ERROR_CODES.iter().filter(|(code, ..)| codes.contains(code)) {
        for status in *statuses {
            refusals.entry(*status).or_default().push(code);
        }
    }
    all.extend(refusals.into_iter().map(|(status, codes)| (status.to_string(), refusal(status, &codes))));
    all
}

/// `x-codes`: all codes with this status. What they mean is said once, in the examples of the components.
fn refusal(status: u16, codes: &[&str]) -> Value {
    let reason = StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
    let examples = codes.iter().take(1).map(|code| {
        let name = example_name(code, status);
        ((*code).to_owned(), json!({ "$ref": format!("#/components/examples/{name}") }))
    });
    json!({
        "description": reason.unwrap_or("Refused"), "x-codes": codes,
        "content": { "application/json": {
            "schema": { "$ref": "#/components/schemas/ApiError" },
            "examples": examples.collect::<Map<_, _>>(),
        } },
    })
}

/// Few codes have two statuses.
fn example_name(code: &str, status: u16) -> String {
    let statuses =
        ERROR_CODES.iter().find(|(known, ..)| *known == code).map_or(&[][..], |(_, statuses, _)| statuses);
    if statuses.len() > 1 { format!("{code}_{status}") } else { code.to_owned() }
}

/// Every error, with its meaning.
fn error_examples() -> Map<String, Value> {
    let each = ERROR_CODES.iter().flat_map(|(code, statuses, meaning)| {
        statuses.iter().map(move |status| {
            let body = json!({ "error": meaning, "statusCode": status, "code": code });
            (example_name(code, *status), json!({ "summary": meaning, "value": body }))
        })
    });
    each.collect()
}
