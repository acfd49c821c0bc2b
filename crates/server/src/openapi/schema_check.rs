//! Whether a JSON value is what a schema of the document says. Stricter than JSON Schema: a field that an object's schema
//! does not name is a violation, because no answer may have an undocumented field.

pub(crate) use super::document::the_document;
use serde_json::Value;

pub(crate) fn violations(value: &Value, schema: &Value) -> Vec<String> {
    let mut found = Vec::new();
    check("", value, schema, &mut found);
    found
}

/// What the document says about a request, if it has that operation.
pub(crate) fn documented(method: &str, path: &str) -> Option<&'static Value> {
    let path = path.split('?').next().unwrap_or_default();
    let paths = the_document()["paths"].as_object()?;
    let fits = |template: &str| {
        let (parts, given): (Vec<&str>, Vec<&str>) =
            (template.split('/').collect(), path.split('/').collect());
        let same = parts.iter().zip(&given).all(|(part, given)| part.starts_with('{') || part == given);
        let open = parts.last() == Some(&"{path}") && given.len() >= parts.len();
        same && (open || parts.len() == given.len())
    };
    let literal = |template: &str| template.matches('{').count();
    let (_, operations) =
        paths.iter().filter(|(template, _)| fits(template)).min_by_key(|(template, _)| literal(template))?;
    operations.get(method.to_lowercase())
}

fn check(at: &str, value: &Value, schema: &Value, found: &mut Vec<String>) {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.trim_start_matches("#/components/schemas/");
        return check(at, value, &the_document()["components"]["schemas"][name], found);
    }
    if let Some(forms) = schema["oneOf"].as_array().or(schema["anyOf"].as_array()) {
        if !forms.iter().any(|form| fits(value, form)) {
            found.push(format!("{at}: {value} is none of the forms"));
        }
        return;
    }
    check_type(at, value, schema, found);
    match value {
        Value::Object(fields) => {
            for name in required(schema) {
                if !fields.contains_key(name) {
                    found.push(format!("{at}.{name} is missing"));
                }
            }
            for (name, value) in fields {
                let own = schema["properties"].get(name).or(schema.get("additionalProperties"));
                match own {
                    Some(Value::Bool(true)) => {}
                    Some(schema @ Value::Object(_)) => check(&format!("{at}.{name}"), value, schema, found),
                    None if is_open(schema) => {}
                    _ => found.push(format!("{at}.{name} is not documented")),
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                check(&format!("{at}[]"), item, &schema["items"], found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn fits(value: &Value, schema: &Value) -> bool {
    let mut found = Vec::new();
    check("", value, schema, &mut found);
    found.is_empty()
}

/// Any object: the schema says nothing about its fields.
fn is_open(schema: &Value) -> bool {
    schema.get("properties").is_none() && schema.get("additionalProperties").is_none()
}

fn required(schema: &Value) -> impl Iterator<Item = &str> {
    schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str)
}

fn check_type(at: &str, value: &Value, schema: &Value, found: &mut Vec<String>) {
    let is = |name: &str| match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    };
    let fine = match &schema["type"] {
        Value::String(name) => is(name),
        Value::Array(names) => names.iter().filter_map(Value::as_str).any(is),
        _ => true,
    };
    if !fine {
        found.push(format!("{at}: {value} is no {}", schema["type"]));
    }
    if schema["enum"].as_array().is_some_and(|known| !known.contains(value)) {
        found.push(format!("{at}: {value} is none of {}", schema["enum"]));
    }
    if schema.get("const").is_some_and(|only| only != value) {
        found.push(format!("{at}: {value} is not {}", schema["const"]));
    }
}
