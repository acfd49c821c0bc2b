//! Whether what is saved gets to the object store.

use super::Check;

const NAME: &str = "object store";

pub(super) async fn check(config: &ash_server::Config) -> Option<Check> {
    let found = match config.bucket() {
        Ok(None) => return None,
        Ok(Some(bucket)) => bucket.check().await.map(|()| bucket.to_string()),
        Err(trouble) => Err(trouble),
    };
    Some(match found {
        Ok(url) => Check::fine(NAME, format!("{url} takes what is sent")),
        Err(trouble) => Check::problem(
            NAME,
            trouble.code.as_str().replace('_', " "),
            format!("{trouble}\nUntil then everything is saved here alone."),
        ),
    })
}
