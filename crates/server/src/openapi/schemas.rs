//! Schemas as clients read them: without what only the derive needs, and flattened where the JSON is flat.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

const PREFIX: &str = "#/components/schemas/";

/// `strict`: references to bodies that refuse unknown fields.
pub(super) fn tidy(all: BTreeMap<String, Value>, strict: &[&str]) -> BTreeMap<String, Value> {
    let plain: BTreeMap<String, Value> =
        all.iter().map(|(name, schema)| (name.clone(), without_noise(schema))).collect();
    let mut tidied: BTreeMap<String, Value> =
        plain.iter().map(|(name, schema)| (name.clone(), flattened(schema, &plain))).collect();
    for reference in strict {
        let name = reference.trim_start_matches(PREFIX);
        if let Some(Value::Object(schema)) = tidied.get_mut(name) {
            schema.insert("additionalProperties".to_owned(), json!(false));
        }
        inherit_descriptions(name, &mut tidied);
    }
    tidied
}

/// An option means the same in a body as in the session's configuration, where it is described.
fn inherit_descriptions(body: &str, all: &mut BTreeMap<String, Value>) {
    let Some(described) = all.get("SessionConfig").map(|options| options["properties"].clone()) else {
        return;
    };
    let properties = all.get_mut(body).and_then(|body| body["properties"].as_object_mut());
    for (name, schema) in properties.into_iter().flatten() {
        if let (Some(schema), Some(text)) = (schema.as_object_mut(), described[name].get("description")) {
            schema.entry("description").or_insert_with(|| text.clone());
        }
    }
}

/// The schemas to which something refers; flattened parts are not among them.
pub(super) fn in_use(paths: &Value, all: BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    let (mut used, mut waiting) = (BTreeMap::new(), references(paths));
    while let Some(name) = waiting.pop() {
        if let Some(schema) = all.get(&name).filter(|_| !used.contains_key(&name)) {
            waiting.extend(references(schema));
            used.insert(name, schema.clone());
        }
    }
    used
}

fn references(value: &Value) -> Vec<String> {
    let text = value.to_string();
    let rest = text.split(PREFIX).skip(1).filter_map(|rest| rest.split('"').next());
    rest.map(str::to_owned).collect()
}

/// Without the type of property names, which says nothing, and without defaults: those of the types are for reading what
/// is stored, and the defaults of requests are in their descriptions.
pub(super) fn without_noise(schema: &Value) -> Value {
    match schema {
        Value::Object(fields) => {
            let is_noise = |name: &str, value: &Value| match name {
                "default" => !value.is_object(),
                other => other == "propertyNames",
            };
            let kept = fields.iter().filter(|(name, value)| !is_noise(name, value));
            let kept = kept.map(|(name, value)| match (name.as_str(), value) {
                ("description", Value::String(text)) => (name.clone(), json!(in_words_of_json(text))),
                _ => (name.clone(), without_noise(value)),
            });
            Value::Object(with_lifted_description(kept.collect()))
        }
        Value::Array(items) => items.iter().map(without_noise).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => schema.clone(),
    }
}

/// The derive describes a field that may be null inside of its choice, where readers do not look.
fn with_lifted_description(mut schema: Map<String, Value>) -> Map<String, Value> {
    let forms = schema.get_mut("oneOf").and_then(Value::as_array_mut);
    let forms = forms.filter(|forms| forms.len() == 2 && forms[1]["type"] == "null");
    let reference = forms.and_then(|forms| forms[0].as_object_mut()).filter(|form| form.contains_key("$ref"));
    if let Some(description) = reference.and_then(|reference| reference.remove("description")) {
        schema.insert("description".to_owned(), description);
    }
    schema
}

/// Comments in the code say `None` where the JSON has null or no field.
fn in_words_of_json(text: &str) -> String {
    let begins = text.replace(". `None`:", ". Null or left out:");
    let begins = match begins.strip_prefix("`None`:") {
        Some(rest) => format!("Null or left out:{rest}"),
        None => begins,
    };
    begins.replace("`None`:", "null or left out:").replace("`None`", "null")
}

/// One object instead of `allOf`, where all parts are objects. Of a part that is a choice, each field may be left out.
fn flattened(schema: &Value, all: &BTreeMap<String, Value>) -> Value {
    let Some(parts) = schema["allOf"].as_array() else { return schema.clone() };
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for part in parts {
        let named = part["$ref"].as_str().and_then(|name| all.get(name.trim_start_matches(PREFIX)));
        let part = flattened(named.unwrap_or(part), all);
        let choices = part["oneOf"].as_array().map_or(std::slice::from_ref(&part), Vec::as_slice);
        for choice in choices {
            let Some(fields) = choice["properties"].as_object() else { return schema.clone() };
            properties.extend(fields.clone());
        }
        required.extend(part["required"].as_array().cloned().unwrap_or_default());
    }
    let mut flat = json!({ "type": "object", "properties": properties });
    if !required.is_empty() {
        flat["required"] = json!(required);
    }
    if let Some(description) = schema.get("description") {
        flat["description"] = description.clone();
    }
    flat
}
