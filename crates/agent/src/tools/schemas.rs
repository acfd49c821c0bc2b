//! The JSON schemas of the tools for the model. They match what `Call` parses.

use serde_json::{Value, json};

/// The schemas of the tools that a session allows.
pub(crate) fn offered(names: &[&str]) -> Vec<Value> {
    let all = [
        tool(
            "run",
            "Runs a command with /bin/sh in the workspace. Answers what it wrote to stdout and stderr, and its exit code if \
             that is not 0. It is killed after `timeout_ms`, by default ten minutes.",
            json!({ "command": string("The command."), "timeout_ms": { "type": "integer", "minimum": 1 } }),
            &["command"],
        ),
        tool(
            "read",
            "Shows a file. Of a long one the beginning.",
            json!({ "path": string("The file.") }),
            &["path"],
        ),
        tool(
            "write",
            "Writes a file, and the folders that it lies in. What was in it is replaced.",
            json!({ "path": string("The file."), "text": string("All that shall be in it.") }),
            &["path", "text"],
        ),
        tool(
            "edit",
            "Replaces a text in a file. The old text must occur exactly once.",
            json!({
                "path": string("The file."),
                "old": string("The text to replace, to the letter."),
                "new": string("What shall stand there."),
            }),
            &["path", "old", "new"],
        ),
        tool(
            "list",
            "Lists a folder; folders in it end with /.",
            json!({ "path": string("The folder; else the workspace.") }),
            &[],
        ),
        tool(
            "search",
            "Finds a text, to the letter, in the files of a folder and all beneath it. Answers files, line numbers and lines.",
            json!({ "text": string("The text."), "path": string("The folder; else the workspace.") }),
            &["text"],
        ),
    ];
    let wanted = |tool: &Value| tool["name"].as_str().is_some_and(|name| names.contains(&name));
    all.into_iter().filter(wanted).collect()
}

fn string(what: &str) -> Value {
    json!({ "type": "string", "description": what })
}

fn tool(name: &str, what: &str, properties: Value, required: &[&str]) -> Value {
    let schema = json!({
        "type": "object", "properties": properties, "required": required, "additionalProperties": false,
    });
    json!({ "name": name, "description": what, "input_schema": schema })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::{NAMES, ToolInvocation};
    use serde::Deserialize;

    #[test]
    fn every_tool_is_offered_with_the_input_that_it_takes() {
        let tools = offered(&NAMES);
        let names: Vec<&str> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
        assert_eq!(names, NAMES);
        for tool in &tools {
            let schema = &tool["input_schema"];
            let properties = schema["properties"].as_object().expect("properties");
            let value = |schema: &Value| if schema["type"] == "integer" { json!(1) } else { json!("x") };
            let all: Value = properties.iter().map(|(name, schema)| (name.clone(), value(schema))).collect();
            let takes = |input: &Value| {
                ToolInvocation::deserialize(json!({ "name": tool["name"], "input": input })).is_ok()
            };
            assert!(takes(&all), "{tool}");
            for name in properties.keys() {
                let mut without = all.clone();
                without.as_object_mut().expect("an object").remove(name);
                let required = schema["required"].as_array().expect("a list").contains(&json!(name));
                assert_eq!(takes(&without), !required, "{tool}: {name}");
            }
        }
    }
}
