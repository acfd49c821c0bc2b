//! A folder in, the result out.

use crate::api::{Api, Failure, Result};
use std::path::Path;

pub(crate) async fn push(_api: &Api, _id: &str, _dir: &Path, _all: bool) -> Result<()> {
    Err(Failure::invalid("draft"))
}
pub(crate) async fn diff(_api: &Api, _id: &str, _name_only: bool, _as_json: bool) -> Result<u8> {
    Err(Failure::invalid("draft"))
}
pub(crate) async fn pull(_api: &Api, _id: &str, _dir: &Path, _how: (bool, bool)) -> Result<u8> {
    Err(Failure::invalid("draft"))
}
