//! The OpenAPI document. The table of routes builds it from the handlers themselves: a parameter, a body or an answer is
//! described by the type that the handler takes or gives, so the document cannot differ from the code.

mod answer;
mod document;
mod endpoint;
mod errors;
mod operations;
mod pages;
#[cfg(test)]
pub(crate) mod schema_check;
mod schemas;
#[cfg(test)]
mod tests;
mod yaml;

pub(crate) use answer::{Answer, Created, VerbatimAnswer};
pub(crate) use endpoint::{
    ApiRouter, DocumentedAnswer, DocumentedInput, OperationDraft, delete, get, patch, post,
};
pub(crate) use errors::{ApiErrorBody, ErrorDetails};
pub(crate) use pages::{docs_json, docs_page, docs_yaml, openapi_json};
