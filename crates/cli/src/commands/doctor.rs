//! Draft.
use crate::{api::Result, settings::Settings};
pub(crate) async fn run(_settings: &Settings) -> Result<u8> { Ok(0) }
