//! A route with its handler and what the handler's types say about it.

use crate::{app::AppState, openapi::operations::OperationText};
use axum::{
    Extension, Router,
    extract::{DefaultBodyLimit, State},
    handler::Handler,
    http::{HeaderMap, StatusCode},
    routing::{self, MethodRouter},
};
use serde_json::{Map, Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};
use utoipa::ToSchema;

/// The routes of the server, and the operations of its document. Both come from the same calls, so neither can have what
/// the other has not.
pub(crate) struct ApiRouter {
    pub(crate) router: Router<AppState>,
    pub(crate) operations: Vec<Operation>,
    tag: &'static str,
}

/// One method of one path.
pub(crate) struct Operation {
    pub(crate) path: &'static str,
    pub(crate) method: &'static str,
    pub(crate) id: &'static str,
    pub(crate) tag: &'static str,
    pub(crate) draft: LazyDraft,
}

/// Made on the first read of the document: until then it costs no memory.
pub(crate) type LazyDraft = LazyLock<OperationDraft>;

/// The handlers of one path.
pub(crate) struct Endpoint {
    handlers: MethodRouter<AppState>,
    operations: Vec<(&'static str, &'static str, LazyDraft)>,
}

/// What the types of a handler say.
#[derive(Default)]
pub(crate) struct OperationDraft {
    pub(crate) parameters: Vec<Value>,
    pub(crate) body: Option<RequestBody>,
    /// By status: what it means, and the schema of each media type.
    pub(crate) answers: BTreeMap<u16, DocumentedContent>,
    pub(crate) error_codes: BTreeSet<&'static str>,
    pub(crate) schemas: BTreeMap<String, Value>,
    /// Whether it needs a key.
    pub(crate) needs_key: bool,
}

pub(crate) struct RequestBody {
    pub(crate) schema: Value,
    /// Unknown fields are refused.
    pub(crate) strict: bool,
}

#[derive(Default)]
pub(crate) struct DocumentedContent {
    pub(crate) description: &'static str,
    pub(crate) media: BTreeMap<&'static str, Value>,
    pub(crate) headers: Map<String, Value>,
}

/// An argument of a handler.
pub(crate) trait DocumentedInput {
    fn describe(operation: &mut OperationDraft);
}

/// What a handler returns.
pub(crate) trait DocumentedAnswer {
    fn describe(operation: &mut OperationDraft);
}

/// A handler all of whose types are documented. `Args` are its arguments, as a tuple.
pub(crate) trait DocumentedHandler<Args> {
    fn describe(operation: &mut OperationDraft);
}

macro_rules! documented_handlers {
    ($(($($argument:ident),*))*) => {
        $(impl<F, Fut, R, $($argument),*> DocumentedHandler<($($argument,)*)> for F
        where
            F: Fn($($argument),*) -> Fut,
            Fut: Future<Output = R>,
            R: DocumentedAnswer,
            $($argument: DocumentedInput),*
        {
            fn describe(operation: &mut OperationDraft) {
                $($argument::describe(operation);)*
                R::describe(operation);
            }
        })*
    };
}

documented_handlers! { () (A) (A, B) (A, B, C) (A, B, C, D) (A, B, C, D, E) (A, B, C, D, E, G) }

impl OperationDraft {
    /// A reference to the schema of `T`, which becomes part of the document.
    pub(crate) fn schema_of<T: ToSchema>(&mut self) -> Value {
        let mut found = vec![(T::name().into_owned(), T::schema())];
        T::schemas(&mut found);
        for (name, schema) in found {
            let schema = serde_json::to_value(schema).unwrap_or_default();
            self.schemas.insert(name, schema);
        }
        json!({ "$ref": format!("#/components/schemas/{}", T::name()) })
    }

    pub(crate) fn errors(&mut self, codes: &[&'static str]) {
        self.error_codes.extend(codes);
    }

    pub(crate) fn json_answer<T: ToSchema>(&mut self, status: StatusCode) {
        let schema = self.schema_of::<T>();
        self.answer(status, "application/json", schema);
    }

    /// One more form of the answer with this status.
    pub(crate) fn answer(&mut self, status: StatusCode, media: &'static str, schema: Value) {
        self.answers.entry(status.as_u16()).or_default().media.insert(media, schema);
    }

    pub(crate) fn answer_without_body(&mut self, status: StatusCode, description: &'static str) {
        self.answers.entry(status.as_u16()).or_default().description = description;
    }

    pub(crate) fn answer_header(&mut self, status: StatusCode, name: &str, description: &str) {
        let header = json!({ "description": description, "schema": { "type": "string" } });
        self.answers.entry(status.as_u16()).or_default().headers.insert(name.to_owned(), header);
    }

    pub(crate) fn json_body<T: ToSchema>(&mut self, strict: bool) {
        let schema = self.schema_of::<T>();
        if strict || self.schemas[&*T::name()]["additionalProperties"] == false {
            self.errors(&["unknown_field"]);
        }
        self.body = Some(RequestBody { schema, strict });
        self.errors(&[
            "disk_full",
            "invalid_body",
            "invalid_json",
            "payload_too_large",
            "request_timeout",
            "too_many_large_bodies",
            "unreadable_body",
        ]);
    }

    /// A type to which a parameter refers must be part of a body or an answer, too: a test finds references to nothing.
    pub(crate) fn query_parameters<T: utoipa::IntoParams>(&mut self) {
        let parameters = T::into_params(|| Some(utoipa::openapi::path::ParameterIn::Query));
        let shown =
            parameters.into_iter().map(|parameter| serde_json::to_value(parameter).unwrap_or_default());
        self.parameters.extend(shown);
    }
}

/// The headers that an operation reads are in its text.
impl DocumentedInput for HeaderMap {
    fn describe(_: &mut OperationDraft) {}
}

impl<T> DocumentedInput for State<T> {
    fn describe(_: &mut OperationDraft) {}
}

impl<T> DocumentedInput for Extension<T> {
    fn describe(_: &mut OperationDraft) {}
}

impl<T> DocumentedInput for Option<Extension<T>> {
    fn describe(_: &mut OperationDraft) {}
}

fn drafted<H: DocumentedHandler<A>, A>() -> OperationDraft {
    let mut draft = OperationDraft::default();
    H::describe(&mut draft);
    draft
}

macro_rules! methods {
    ($($method:ident)*) => {
        $(
            /// `id`: the operation's name in the document, which is also the name of the clients' method.
            pub(crate) fn $method<H, T, A>(id: &'static str, handler: H) -> Endpoint
            where
                H: Handler<T, AppState> + DocumentedHandler<A>,
                T: 'static,
            {
                let draft: LazyDraft = LazyLock::new(drafted::<H, A>);
                Endpoint {
                    handlers: routing::$method(handler),
                    operations: vec![(stringify!($method), id, draft)],
                }
            }
        )*
    };
}

methods! { get post patch delete }

impl Endpoint {
    pub(crate) fn and(mut self, other: Endpoint) -> Endpoint {
        self.operations.extend(other.operations);
        Endpoint { handlers: self.handlers.merge(other.handlers), operations: self.operations }
    }

    /// `most`: the maximum size of its bodies, in bytes.
    pub(crate) fn limited(self, most: usize) -> Endpoint {
        Endpoint { handlers: self.handlers.layer(DefaultBodyLimit::max(most)), ..self }
    }
}

impl ApiRouter {
    pub(crate) fn new() -> ApiRouter {
        ApiRouter { router: Router::new(), operations: Vec::new(), tag: "" }
    }

    /// The group of the routes that follow.
    pub(crate) fn tag(self, tag: &'static str) -> ApiRouter {
        ApiRouter { tag, ..self }
    }

    pub(crate) fn route(mut self, path: &'static str, endpoint: Endpoint) -> ApiRouter {
        let tag = self.tag;
        self.operations.extend(endpoint.operations.into_iter().map(|(method, id, draft)| Operation {
            path,
            method,
            id,
            tag,
            draft,
        }));
        ApiRouter { router: self.router.route(path, endpoint.handlers), ..self }
    }
}

impl Operation {
    pub(crate) fn text(&self) -> Option<&'static OperationText> {
        OperationText::of(self.id)
    }

    /// All codes with which it can refuse a request.
    pub(crate) fn codes(&self) -> BTreeSet<&'static str> {
        let own =
            self.text().into_iter().flat_map(|text| text.errors.iter().flat_map(|set| set.iter().copied()));
        self.draft.error_codes.iter().copied().chain(own).chain(["host_not_allowed"]).collect()
    }
}
