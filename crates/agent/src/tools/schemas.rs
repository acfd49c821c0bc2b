//! The JSON schemas of the tools for the model. They match what `Call` parses.

use crate::flags::AgentSettings;
use crate::tools::NAMES;
use serde_json::{Value, json};

/// The schemas of the tools that a session allows, and of those that its client executes.
pub(crate) fn offered(settings: &AgentSettings) -> Vec<Value> {
    let own = own_tools().into_iter().filter(|tool| {
        let name = tool["name"].as_str().unwrap_or_default();
        settings.tools.contains(&name) && !settings.is_client_tool(name)
    });
    let of_client = settings.client_tools.iter().map(|tool| {
        json!({ "name": tool.name, "description": tool.description, "input_schema": tool.input_schema })
    });
    own.chain(of_client).collect()
}

fn own_tools() -> [Value; NAMES.len()] {
    [
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
    ]
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
    use crate::tools::ToolInvocation;
    use serde::Deserialize;

    #[test]
    fn every_tool_is_offered_with_the_input_that_it_takes() {
        let tools = offered(&AgentSettings::default());
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

    #[test]
    fn a_tool_of_the_client_is_offered_whatever_is_allowed_and_replaces_ours() {
        let schema = json!({"type": "object", "properties": {"x": {"type": "string"}}});
        let tool = |name: &str| ash_model::ClientTool {
            name: name.into(),
            description: "Looks up.".into(),
            input_schema: schema.clone(),
        };
        let client_tools = vec![tool("lookup"), tool("read")];
        let settings =
            AgentSettings { tools: vec!["list", "read"], client_tools, ..AgentSettings::default() };
        let tools = offered(&settings);
        let names: Vec<&str> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
        assert_eq!((&names, settings.tool_names()), (&vec!["list", "lookup", "read"], names.clone()));
        let expected = json!({"name": "read", "description": "Looks up.", "input_schema": schema});
        assert_eq!(tools[2], expected);
    }
}
