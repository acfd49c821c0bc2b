//! `ash key`: create, list and delete API keys, for a whole tenant or for one owner.

use crate::{
    api::{ApiClient, Result, percent_encode},
    args::KeyCommand,
    terminal::{self, TerminalStyle, TextTable},
};
use serde_json::json;

pub(crate) async fn run(api: &ApiClient, command: KeyCommand, as_json: bool) -> Result<()> {
    match command {
        KeyCommand::Create { label, owner } => {
            let made = api.post("/api/api-keys", &json!({ "label": label, "owner": owner })).await?;
            if as_json {
                terminal::json(&made);
            } else {
                println!("{}", made["key"].as_str().unwrap_or_default());
            }
        }
        KeyCommand::List => {
            let answer = api.get("/api/api-keys").await?;
            if as_json {
                terminal::json(&answer);
                return Ok(());
            }
            let mut table = TextTable::new(&["ID", "OWNER", "LABEL", "CREATED"]);
            for key in answer["keys"].as_array().into_iter().flatten() {
                let text = |name: &str| key[name].as_str().unwrap_or_default().to_owned();
                let (id, owner, label) = (text("id"), text("owner"), text("label"));
                table.row(vec![
                    (id, Some(TerminalStyle::Bold)),
                    (owner, None),
                    (label, None),
                    (text("createdAt"), None),
                ]);
            }
            table.print();
        }
        KeyCommand::Delete { id } => {
            let answer = api.delete(&format!("/api/api-keys/{}", percent_encode(&id))).await?;
            if as_json {
                terminal::json(&answer);
            } else {
                eprintln!("{} deleted; requests with it are refused", id);
            }
        }
    }
    Ok(())
}
