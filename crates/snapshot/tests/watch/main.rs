//! What following a file system promises, asked from outside. With root's rights; without them it must say so.

mod bounds;
mod changes;
mod history;
mod mapped;
mod rights;
mod support;
