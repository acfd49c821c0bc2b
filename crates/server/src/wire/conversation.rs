//! The conversation as items, so that a client need not parse JSON inside of texts.

use ash_model::{EventSeq, Timestamp, TurnId};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{Ref, RefOr, Schema, schema::AnyOfBuilder},
};

/// A message of a user, or one of the agent.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = ConversationItem)]
pub(crate) struct ConversationItemView {
    /// `user` or `assistant`.
    pub(crate) role: &'static str,
    /// Null: the agent wrote it outside of a turn.
    #[schema(required)]
    pub(crate) turn: Option<TurnId>,
    pub(crate) at: Timestamp,
    /// The events of the message itself, in their order. The results of its calls have events of their own.
    pub(crate) events: Vec<EventSeq>,
    pub(crate) blocks: Vec<ConversationBlock>,
    /// As the model's service counts it; null if the agent does not say.
    #[schema(required)]
    pub(crate) usage: Option<Value>,
    /// Of a subagent: the id of the tool call that started it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) parent: Option<String>,
    /// Its place in the log: `after` of a request for what follows.
    pub(crate) after: EventSeq,
}

/// A part of a message. Blocks that are none of the known ones are as the sender wrote them.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum ConversationBlock {
    Known(KnownBlock),
    Other(OtherBlock),
}

/// By hand: the derive says `oneOf`, and a known block fits the open form, too.
impl PartialSchema for ConversationBlock {
    fn schema() -> RefOr<Schema> {
        let description =
            "A part of a message. A block that is none of the known ones is as the sender wrote it.";
        let forms = AnyOfBuilder::new().item(Ref::from_schema_name("KnownBlock"));
        forms.item(Ref::from_schema_name("OtherBlock")).description(Some(description)).into()
    }
}

impl ToSchema for ConversationBlock {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push(("KnownBlock".to_owned(), KnownBlock::schema()));
        KnownBlock::schemas(schemas);
        schemas.push(("OtherBlock".to_owned(), OtherBlock::schema()));
    }
}

/// An `image`, a `document`, or a block that the server does not know.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(value_type = std::collections::BTreeMap<String, Value>)]
pub(crate) struct OtherBlock(pub(crate) Map<String, Value>);

/// Told apart by `type`.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum KnownBlock {
    Text {
        text: String,
    },
    Thinking {
        thinking: String,
    },
    /// A call with its result.
    ToolCall {
        id: String,
        /// Letters, digits, `-` and `_` only.
        name: String,
        input: Value,
        /// Null: there is none yet, or the call was cut off.
        #[schema(required)]
        result: Option<ToolCallResult>,
    },
}

/// What the model got back.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ToolCallResult {
    /// The text of the result; `[image]` and the like for what is no text.
    pub(crate) content: String,
    pub(crate) is_error: bool,
    /// True: the results of one message are too long, and the log has the rest of this one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) truncated: bool,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ConversationAnswer {
    pub(crate) items: Vec<ConversationItemView>,
    /// `after` of the next page; null if there is none.
    #[schema(required)]
    pub(crate) next_after: Option<EventSeq>,
}
