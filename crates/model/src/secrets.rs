//! Secret values in `mcpServers`: those of `headers` and `env`. Options hold [`MASK`] instead; the values are stored
//! separately, sealed, under their JSON pointers.

use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The text that replaces a secret. A client that sends it back keeps the value.
pub const MASK: &str = "***";

const FIELDS: [&str; 2] = ["headers", "env"];

/// A field that cannot hold a secret, by its name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} must be an object of strings")]
pub struct BadSecrets(String);

/// Replaces every secret by [`MASK`] and returns the values. Numbers and booleans count as their text.
pub fn extract_secrets(servers: &mut Map<String, Value>) -> Result<BTreeMap<String, String>, BadSecrets> {
    let mut secrets = BTreeMap::new();
    for (name, server) in servers {
        for field in FIELDS {
            let Some(values) = server.get_mut(field).filter(|values| !values.is_null()) else { continue };
            let bad = || BadSecrets(format!("mcpServers.{name}.{field}"));
            for (key, value) in values.as_object_mut().ok_or_else(bad)? {
                let text = match &*value {
                    Value::String(text) => text.clone(),
                    Value::Number(_) | Value::Bool(_) => value.to_string(),
                    Value::Null | Value::Array(_) | Value::Object(_) => return Err(bad()),
                };
                secrets.insert(pointer(name, field, key), text);
                *value = MASK.into();
            }
        }
    }
    Ok(secrets)
}

/// The servers as clients see them. Also masks what was stored before secrets were separate.
pub fn mask_secrets(servers: &Value) -> Value {
    let mut shown = servers.clone();
    for server in shown.as_object_mut().into_iter().flat_map(Map::values_mut) {
        for field in FIELDS {
            let Some(values) = server.get_mut(field) else { continue };
            match values.as_object_mut() {
                Some(values) => values.values_mut().for_each(|value| *value = MASK.into()),
                None => *values = MASK.into(),
            }
        }
    }
    shown
}

/// The servers as the agent needs them, and the pointers of unknown secrets. An unknown secret is left out: with the mask
/// in its place the MCP server would report a wrong key, which is misleading.
pub fn fill_secrets(servers: &Value, secrets: &BTreeMap<String, String>) -> (Value, Vec<String>) {
    let (mut filled, mut missing) = (servers.clone(), Vec::new());
    for (name, server) in filled.as_object_mut().into_iter().flatten() {
        for field in FIELDS {
            let Some(values) = server.get_mut(field).and_then(Value::as_object_mut) else { continue };
            values.retain(|key, value| {
                let at = pointer(name, field, key);
                match secrets.get(&at) {
                    _ if value != MASK => true,
                    Some(secret) => {
                        *value = secret.as_str().into();
                        true
                    }
                    None => {
                        missing.push(at);
                        false
                    }
                }
            });
        }
    }
    (filled, missing)
}

fn pointer(server: &str, field: &str, key: &str) -> String {
    let escaped = |part: &str| part.replace('~', "~0").replace('/', "~1");
    format!("/mcpServers/{}/{field}/{}", escaped(server), escaped(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn servers() -> Map<String, Value> {
        let servers = json!({
            "a/b": { "type": "http", "url": "https://x", "headers": { "Authorization": "Bearer t", "X": 5 } },
            "c": { "command": "x", "args": ["y"], "env": { "K~": "v" } },
        });
        servers.as_object().expect("an object").clone()
    }

    #[test]
    fn secrets_leave_the_servers_by_path_and_come_back() {
        let mut hidden = servers();
        let secrets = extract_secrets(&mut hidden).expect("strings");
        let expected = [
            ("/mcpServers/a~1b/headers/Authorization", "Bearer t"),
            ("/mcpServers/a~1b/headers/X", "5"),
            ("/mcpServers/c/env/K~0", "v"),
        ];
        assert_eq!(secrets, expected.map(|(path, value)| (path.to_owned(), value.to_owned())).into());
        let hidden = Value::Object(hidden);
        assert_eq!(hidden["a/b"]["headers"], json!({ "Authorization": "***", "X": "***" }));
        assert_eq!(hidden["c"], json!({ "command": "x", "args": ["y"], "env": { "K~": "***" } }));
        let (filled, missing) = fill_secrets(&hidden, &secrets);
        assert_eq!(filled["a/b"]["headers"], json!({ "Authorization": "Bearer t", "X": "5" }));
        assert_eq!((&filled["c"]["env"], missing.as_slice()), (&json!({ "K~": "v" }), [].as_slice()));
        let (without, missing) = fill_secrets(&hidden, &BTreeMap::new());
        assert_eq!((&without["c"]["env"], missing.len()), (&json!({}), 3));
    }

    #[test]
    fn secrets_stored_in_the_clear_are_masked_and_still_work() {
        let plain = Value::Object(servers());
        assert_eq!(mask_secrets(&plain)["c"]["env"], json!({ "K~": "***" }));
        assert_eq!(fill_secrets(&plain, &BTreeMap::new()), (plain.clone(), Vec::new()));
    }

    #[test]
    fn an_env_that_is_no_object_of_strings_is_refused_by_name() {
        for field in [json!("x"), json!(["x"]), json!({ "a": ["x"] }), json!({ "a": null })] {
            let mut odd = json!({ "s": { "env": field } }).as_object().expect("an object").clone();
            let error = extract_secrets(&mut odd).expect_err("refused");
            assert_eq!(error.to_string(), "mcpServers.s.env must be an object of strings");
        }
    }
}
