//! API keys: make one for everything of a tenant or for one owner, list them, take one away.

use crate::{
    api::{Api, Result, encoded},
    args::Key,
    out::{self, Paint, Table},
};
use serde_json::json;

pub(crate) async fn run(api: &Api, command: Key, as_json: bool) -> Result<()> {
    match command {
        Key::Create { label, owner } => {
            let made = api.post("/api/api-keys", &json!({ "label": label, "owner": owner })).await?;
            if as_json {
                out::json(&made);
            } else {
                println!("{}", made["key"].as_str().unwrap_or_default());
            }
        }
        Key::List => {
            let answer = api.get("/api/api-keys").await?;
            if as_json {
                out::json(&answer);
                return Ok(());
            }
            let mut table = Table::new(&["ID", "OWNER", "LABEL", "CREATED"]);
            for key in answer["keys"].as_array().into_iter().flatten() {
                let text = |name: &str| key[name].as_str().unwrap_or_default().to_owned();
                let (id, owner, label) = (text("id"), text("owner"), text("label"));
                table.row(vec![
                    (id, Some(Paint::Bold)),
                    (owner, None),
                    (label, None),
                    (text("createdAt"), None),
                ]);
            }
            table.print();
        }
        Key::Delete { id } => {
            let answer = api.delete(&format!("/api/api-keys/{}", encoded(&id))).await?;
            if as_json {
                out::json(&answer);
            } else {
                eprintln!("{} opens nothing any more", id);
            }
        }
    }
    Ok(())
}
