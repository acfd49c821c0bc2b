//! The document against the code: every route, every code, every example.

use super::{
    document::{EXAMPLES, the_document},
    errors::ERROR_CODES,
    operations::OPERATIONS,
    schema_check::violations,
};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

fn golden() -> String {
    format!("{}\n", serde_json::to_string_pretty(the_document()).expect("JSON"))
}

/// Every operation: its method, its path and what the document says.
fn operations() -> Vec<(String, String, &'static Value)> {
    let paths = the_document()["paths"].as_object().expect("paths");
    let methods = paths.iter().flat_map(|(path, methods)| {
        methods
            .as_object()
            .expect("methods")
            .iter()
            .map(move |(method, shown)| (method.clone(), path.clone(), shown))
    });
    methods.collect()
}

#[test]
fn the_openapi_document_is_the_checked_in_one() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, golden()).expect("write");
    }
    let checked_in = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        checked_in == golden(),
        "run it with UPDATE_DOCS=1, and read the difference of docs/openapi.json"
    );
}

#[test]
fn every_openapi_operation_says_what_a_client_generator_needs() {
    let tags: BTreeSet<&str> = the_document()["tags"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|tag| tag["name"].as_str())
        .collect();
    for (method, path, operation) in operations() {
        let words = ["operationId", "summary"].map(|name| operation[name].as_str().unwrap_or_default());
        assert!(words.iter().all(|text| !text.is_empty()), "{method} {path}: {words:?}");
        assert!(operation["tags"][0].as_str().is_some_and(|tag| tags.contains(tag)), "{method} {path}");
        let named = |place: &str| -> Vec<&str> {
            let all = operation["parameters"].as_array().into_iter().flatten();
            all.filter(|one| one["in"] == place).filter_map(|one| one["name"].as_str()).collect()
        };
        let in_path: Vec<&str> = path.split('{').skip(1).filter_map(|rest| rest.split('}').next()).collect();
        assert_eq!(named("path"), in_path, "{method} {path}");
        for place in ["path", "query", "header"] {
            let once: BTreeSet<&str> = named(place).into_iter().collect();
            assert_eq!(once.len(), named(place).len(), "{method} {path} names a parameter twice");
        }
    }
}

#[test]
fn every_route_of_the_router_is_an_openapi_operation_and_the_reverse() {
    // The router and the document are made from the same calls, so only a route beside the table could be missing.
    let source = include_str!("../routes.rs");
    let table = source.split("pub(crate) fn api()").nth(1).and_then(|rest| rest.split("\n}\n").next());
    let table = table.expect("the table of routes");
    assert_eq!(
        source.matches(".route(").count(),
        table.matches(".route(").count(),
        "a route beside the table"
    );
    let api = crate::routes::api();
    let routed: BTreeSet<(String, String)> = api
        .operations
        .iter()
        .map(|operation| (operation.method.to_owned(), operation.path.replace("{*", "{")))
        .collect();
    let documented = operations().into_iter().map(|(method, path, _)| (method, path)).collect();
    assert_eq!(routed, documented);
    assert_eq!(api.operations.len(), routed.len());
}

#[test]
fn every_openapi_operation_has_its_text_once() {
    let ids: Vec<&str> = crate::routes::api().operations.iter().map(|operation| operation.id).collect();
    let texts: Vec<&str> = OPERATIONS.iter().map(|text| text.id).collect();
    for names in [&ids, &texts] {
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "an id is there twice");
    }
    assert_eq!(ids.iter().collect::<BTreeSet<_>>(), texts.iter().collect::<BTreeSet<_>>());
}

#[test]
fn every_openapi_error_code_is_known_and_used() {
    let known: BTreeSet<&str> = ERROR_CODES.iter().map(|(code, ..)| *code).collect();
    let used: BTreeSet<&str> =
        crate::routes::api().operations.iter().flat_map(super::endpoint::Operation::codes).collect();
    assert_eq!(used.difference(&known).collect::<Vec<_>>(), Vec::<&&str>::new(), "without a meaning");
    assert_eq!(known.difference(&used).collect::<Vec<_>>(), Vec::<&&str>::new(), "of no operation");
    assert!(ERROR_CODES.is_sorted_by_key(|(code, ..)| *code), "in alphabetical order");
}

#[test]
fn every_openapi_reference_leads_to_a_schema_and_every_schema_is_used() {
    let text = the_document().to_string();
    let schemas = the_document()["components"]["schemas"].as_object().expect("schemas");
    let named: BTreeSet<&str> =
        text.split("#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    let known: BTreeSet<&str> = schemas.keys().map(String::as_str).collect();
    assert_eq!(named.difference(&known).collect::<Vec<_>>(), Vec::<&&str>::new());
    let unused: Vec<&&str> = known.difference(&named).collect();
    assert_eq!(unused, Vec::<&&str>::new());
}

#[test]
fn no_openapi_schema_is_split_into_parts() {
    let text = the_document()["components"]["schemas"].to_string();
    assert!(!text.contains("\"allOf\""), "the checks of answers know no parts");
}

#[test]
fn two_openapi_schemas_never_share_a_name() {
    let mut found: BTreeMap<String, Value> = BTreeMap::new();
    for operation in crate::routes::api().operations {
        for (name, schema) in &operation.draft.schemas {
            let before = found.insert(name.clone(), schema.clone());
            assert!(before.is_none_or(|before| before == *schema), "{name} is two schemas");
        }
    }
}

#[test]
fn every_openapi_example_fits_its_schema_and_every_json_body_has_one() {
    let examples: Map<String, Value> = serde_json::from_str(EXAMPLES).expect("JSON");
    let mut seen = BTreeSet::new();
    for (method, path, operation) in operations() {
        let id = operation["operationId"].as_str().expect("an id");
        let answers = operation["responses"].as_object().expect("answers").iter();
        let good =
            answers.filter(|(status, _)| status.starts_with('2')).map(|(_, answer)| &answer["content"]);
        let contents = good.chain([&operation["requestBody"]["content"]]);
        let bodies =
            contents.flat_map(|content| [&content["application/json"], &content["text/event-stream"]]);
        for body in bodies.filter(|body| !body.is_null() && body["schema"] != json!({ "type": "object" })) {
            assert!(!body["example"].is_null(), "{method} {path} ({id}) has no example");
            assert_eq!(violations(&body["example"], &body["schema"]), Vec::<String>::new(), "{id}");
        }
        seen.insert(id.to_owned());
    }
    let unknown: Vec<&String> = examples.keys().filter(|id| !seen.contains(*id)).collect();
    assert_eq!(unknown, Vec::<&String>::new(), "examples of no operation");
}

#[test]
fn a_value_that_does_not_fit_an_openapi_schema_is_found() {
    let api_error = json!({ "$ref": "#/components/schemas/ApiError" });
    let fine = json!({ "error": "x", "statusCode": 404, "code": "y", "queued": null });
    assert_eq!(violations(&fine, &api_error), Vec::<String>::new());
    for (wrong, word) in [
        (json!({ "error": "x", "code": "y" }), "statusCode is missing"),
        (json!({ "error": 5, "statusCode": 404, "code": "y" }), "error"),
        (json!({ "error": "x", "statusCode": 404, "code": "y", "more": 1 }), "more is not documented"),
    ] {
        assert!(violations(&wrong, &api_error).iter().any(|found| found.contains(word)), "{wrong}");
    }
    let event = json!({ "$ref": "#/components/schemas/StreamEvent" });
    assert!(violations(&json!({ "event": "paused", "data": {} }), &event).is_empty());
    assert!(!violations(&json!({ "event": "paused", "data": { "x": 1 } }), &event).is_empty());
}
