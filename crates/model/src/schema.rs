//! How our own text types are documented in OpenAPI. A derive would show them as objects, because it sees their fields.

use crate::{SandboxPath, SessionMetadata, Timestamp};
use std::borrow::Cow;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        KnownFormat, ObjectBuilder, RefOr, SchemaFormat,
        schema::{AdditionalProperties, Schema, Type},
    },
};

/// A name as text. Its rule is a sentence, because what is refused does not always fit a pattern.
pub(crate) fn text(description: String) -> RefOr<Schema> {
    ObjectBuilder::new().schema_type(Type::String).description(Some(description)).into()
}

impl PartialSchema for Timestamp {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
            .description(Some("ISO 8601 in UTC, with milliseconds."))
            .examples(["2026-03-31T12:00:00.000Z"])
            .into()
    }
}

impl ToSchema for Timestamp {
    fn name() -> Cow<'static, str> {
        "Timestamp".into()
    }
}

impl PartialSchema for SandboxPath {
    fn schema() -> RefOr<Schema> {
        text(
            "A path beneath /workspace or /home/agent, as a process in the sandbox sees it; without \"..\"."
                .into(),
        )
    }
}

impl ToSchema for SandboxPath {
    fn name() -> Cow<'static, str> {
        "SandboxPath".into()
    }
}

impl PartialSchema for SessionMetadata {
    fn schema() -> RefOr<Schema> {
        let value = ObjectBuilder::new().schema_type(Type::String).max_length(Some(1024));
        ObjectBuilder::new()
            .schema_type(Type::Object)
            .description(Some(
                "Labels of the caller: at most 50 names of 1 to 64 bytes, with texts of at most 1024 bytes.",
            ))
            .additional_properties(Some(AdditionalProperties::RefOr(RefOr::T(Schema::Object(value.build())))))
            .into()
    }
}

impl ToSchema for SessionMetadata {
    fn name() -> Cow<'static, str> {
        "SessionMetadata".into()
    }
}
