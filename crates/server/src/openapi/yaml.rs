//! YAML in the subset that every JSON value has: mappings and lists in block style, every text in double quotes unless it
//! is a plain word. A quoted text is a JSON text, which YAML 1.2 reads alike.

use serde_json::Value;
use std::fmt::Write;

pub(super) fn to_yaml(value: &Value) -> String {
    let mut text = String::new();
    write_value(&mut text, value, 0);
    text
}

/// Begins after `key:` or `-`, and ends with a line break.
fn write_value(text: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                indent(text, depth);
                text.push_str(&scalar(name));
                text.push(':');
                write_nested(text, value, depth + 1);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                indent(text, depth);
                text.push('-');
                write_nested(text, item, depth + 1);
            }
        }
        Value::String(words) => text.push_str(&format!("{}\n", scalar(words))),
        // Empty lists and objects, numbers, true, false and null are the same in YAML.
        plain => {
            // Writing to a string cannot fail.
            writeln!(text, "{plain}").ok();
        }
    }
}

/// The value on the lines after this one if it is a list or an object, else on this line.
fn write_nested(text: &mut String, value: &Value, depth: usize) {
    let is_block = match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    };
    text.push(if is_block { '\n' } else { ' ' });
    write_value(text, value, depth);
}

fn indent(text: &mut String, depth: usize) {
    text.push_str(&"  ".repeat(depth));
}

/// Words that no reader takes for anything but a text stay as they are.
fn scalar(words: &str) -> String {
    let starts = words.starts_with(|c: char| c.is_ascii_alphabetic());
    let plain = words.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    let reserved = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let is_reserved = reserved.contains(&words.to_ascii_lowercase().as_str());
    if starts && plain && !is_reserved { words.to_owned() } else { Value::from(words).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_kind_of_value_is_written_so_that_yaml_reads_it_alike() {
        let value = json!({
            "a": { "b": [1, "two", { "c": null, "d": [] }, ["x"]] },
            "e": "no", "f": "a: b # c\n", "200": true, "g": {}, "h": "",
        });
        let text = r#""200": true
a:
  b:
    - 1
    - two
    -
      c: null
      d: []
    -
      - x
e: "no"
f: "a: b # c\n"
g: {}
h: ""
"#;
        assert_eq!(to_yaml(&value), text);
    }
}
