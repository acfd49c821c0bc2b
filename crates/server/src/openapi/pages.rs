//! The addresses of the document: as JSON, as YAML, and as a page that shows the JSON to people.

use super::{
    document::of_the_api,
    endpoint::{DocumentedAnswer, OperationDraft},
    yaml,
};
use axum::{
    http::{
        StatusCode,
        header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE},
    },
    response::{Html, IntoResponse, Response},
};
use serde_json::json;
use std::sync::LazyLock;
use uuid::Uuid;

pub(crate) struct JsonDocument;
pub(crate) struct YamlDocument;
pub(crate) struct DocumentPage;

const PAGE: &str = include_str!("page.html");

static JSON: LazyLock<String> = LazyLock::new(|| of_the_api().to_string());
static YAML: LazyLock<String> = LazyLock::new(|| yaml::to_yaml(&of_the_api()));

pub(crate) async fn openapi_json() -> JsonDocument {
    JsonDocument
}

pub(crate) async fn docs_json() -> JsonDocument {
    JsonDocument
}

pub(crate) async fn docs_yaml() -> YamlDocument {
    YamlDocument
}

pub(crate) async fn docs_page() -> DocumentPage {
    DocumentPage
}

impl IntoResponse for JsonDocument {
    fn into_response(self) -> Response {
        ([(CONTENT_TYPE, "application/json")], JSON.as_str()).into_response()
    }
}

impl IntoResponse for YamlDocument {
    fn into_response(self) -> Response {
        ([(CONTENT_TYPE, "application/yaml")], YAML.as_str()).into_response()
    }
}

impl IntoResponse for DocumentPage {
    /// The nonce is new for every answer: nothing runs but the page's own script, and that reads only this server.
    fn into_response(self) -> Response {
        let nonce = Uuid::new_v4().simple().to_string();
        let policy = format!(
            "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        );
        ([(CONTENT_SECURITY_POLICY, policy)], Html(PAGE.replace("{{nonce}}", &nonce))).into_response()
    }
}

impl DocumentedAnswer for JsonDocument {
    fn describe(operation: &mut OperationDraft) {
        operation.answer(StatusCode::OK, "application/json", json!({ "type": "object" }));
    }
}

impl DocumentedAnswer for YamlDocument {
    fn describe(operation: &mut OperationDraft) {
        operation.answer(StatusCode::OK, "application/yaml", json!({ "type": "object" }));
    }
}

impl DocumentedAnswer for DocumentPage {
    fn describe(operation: &mut OperationDraft) {
        operation.answer(StatusCode::OK, "text/html", json!({ "type": "string" }));
    }
}
