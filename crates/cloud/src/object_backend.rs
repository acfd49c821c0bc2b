//! The trait that every store and every wrapper implements.

use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::{
    Attributes, Extensions, GetResult, GetResultPayload, ObjectMeta, ObjectStore, Result,
    multipart::MultipartStore,
};
use std::ops::Range;

/// The size of a part, and the largest body of a single request. Stores accept 10,000 parts: 78 GiB.
pub const PART: usize = 8 << 20;

/// Writes whole objects, and large ones in numbered parts.
///
/// Large files go through `MultipartStore`, where a part and the completion can be sent again. The upload that
/// `ObjectStore::put_multipart_opts` returns forgets its parts at the first attempt to complete it. Nothing here calls
/// that method or the copy methods, so every wrapper passes them on unchanged.
pub trait ObjectBackend: ObjectStore + MultipartStore {}

impl<S: ObjectStore + MultipartStore> ObjectBackend for S {}

/// Displays a wrapper by the name of the store inside. Never uses the `Debug` of that store: object_store's prints
/// tokens.
macro_rules! named {
    ($name:ident) => {
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.inner)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    };
}
pub(crate) use named;

pub(crate) type ObjectByteStream = BoxStream<'static, Result<Bytes>>;

/// An answer without its body, so that a wrapper can replace the body.
pub(crate) struct ObjectResponseHead {
    pub(crate) range: Range<u64>,
    meta: ObjectMeta,
    attributes: Attributes,
    extensions: Extensions,
}

impl ObjectResponseHead {
    pub(crate) fn of(got: GetResult) -> (ObjectResponseHead, ObjectByteStream) {
        let head = ObjectResponseHead {
            range: got.range.clone(),
            meta: got.meta.clone(),
            attributes: got.attributes.clone(),
            extensions: got.extensions.clone(),
        };
        (head, got.into_stream())
    }

    pub(crate) fn with(self, body: ObjectByteStream) -> GetResult {
        let ObjectResponseHead { range, meta, attributes, extensions } = self;
        GetResult { payload: GetResultPayload::Stream(body), meta, range, attributes, extensions }
    }
}
