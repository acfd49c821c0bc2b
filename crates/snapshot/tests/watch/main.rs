//! Tests of the public interface for following a file system. They need root's rights; without them it must report
//! why.

mod bounds;
mod changes;
mod history;
mod mapped;
mod rights;
mod support;
