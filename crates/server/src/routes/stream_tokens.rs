//! Tokens for clients that cannot send an Authorization header: a browser's EventSource.

use super::extract::{PathParam, find_session};
use crate::{
    app::AppState,
    auth::{Caller, stream_token_key},
    openapi::Answer,
    problem::{ApiProblem, ApiResult},
    wire::session::StreamTokenAnswer,
};
use ash_session::StreamToken;
use axum::extract::State;

pub(super) async fn create(
    State(app): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam,
) -> ApiResult<Answer<StreamTokenAnswer>> {
    let session = find_session(&app.sessions, &caller, &id).await?;
    let key =
        stream_token_key(&app, &caller).ok_or_else(|| ApiProblem::internal("a caller without a key"))?;
    let StreamToken { text, expires_at } = app.stream_tokens.issue(&session, key);
    Ok(Answer(StreamTokenAnswer { token: text, expires_at }))
}
