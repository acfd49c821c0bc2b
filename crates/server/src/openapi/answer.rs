//! Answers with a documented type.

use super::endpoint::{DocumentedAnswer, OperationDraft};
use crate::problem::{ApiProblem, ApiResult};
use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use utoipa::ToSchema;

/// 200 with a JSON body.
#[derive(Debug)]
pub(crate) struct Answer<T>(pub(crate) T);

/// 201 with a JSON body.
#[derive(Debug)]
pub(crate) struct Created<T>(pub(crate) T);

/// 200 with a JSON body whose raw parts keep their bytes.
#[derive(Debug)]
pub(crate) struct VerbatimAnswer<T>(pub(crate) T);

impl<T: Serialize> IntoResponse for VerbatimAnswer<T> {
    fn into_response(self) -> Response {
        Json(self.0).into_response()
    }
}

impl<T: ToSchema> DocumentedAnswer for VerbatimAnswer<T> {
    fn describe(operation: &mut OperationDraft) {
        operation.json_answer::<T>(StatusCode::OK);
    }
}

impl<T: Serialize> IntoResponse for Answer<T> {
    fn into_response(self) -> Response {
        // By way of a value, whose fields are in alphabetical order: so answers have always been sent.
        match serde_json::to_value(&self.0) {
            Ok(body) => Json(body).into_response(),
            Err(error) => ApiProblem::internal(error).into_response(),
        }
    }
}

impl<T: Serialize> IntoResponse for Created<T> {
    fn into_response(self) -> Response {
        match serde_json::to_value(&self.0) {
            Ok(body) => (StatusCode::CREATED, Json(body)).into_response(),
            Err(error) => ApiProblem::internal(error).into_response(),
        }
    }
}

impl<T: ToSchema> DocumentedAnswer for Answer<T> {
    fn describe(operation: &mut OperationDraft) {
        operation.json_answer::<T>(StatusCode::OK);
    }
}

impl<T: ToSchema> DocumentedAnswer for Created<T> {
    fn describe(operation: &mut OperationDraft) {
        operation.json_answer::<T>(StatusCode::CREATED);
    }
}

impl<T: DocumentedAnswer> DocumentedAnswer for ApiResult<T> {
    fn describe(operation: &mut OperationDraft) {
        T::describe(operation);
        operation.errors(&["internal", "store_failed", "server_stopped"]);
    }
}
