//! Turns the fields of a body, or the parameters of a query, into values. It applies the coercions of the reference
//! ("5" for 5, 5 for "5", one for a list of one), and rejects or ignores unknown names. Errors name the field and the
//! expected value in our own words.

use serde::de::{self, DeserializeOwned, DeserializeSeed, Expected, IntoDeserializer, Unexpected, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

/// How to treat an unknown field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnknownFieldPolicy {
    Refuse,
    Ignore,
}

/// How to treat a value of another type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coercions {
    /// Those of the reference: "5" for 5, 5 for "5", 1 for true, one for a list of one.
    Reference,
    None,
}

#[derive(Debug, Clone, Copy)]
struct Rules {
    unknown: UnknownFieldPolicy,
    coercions: Coercions,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FieldError {
    /// An unknown field, with the message.
    Unknown(String),
    /// The path of the field, if it is one, and what its value must be.
    Invalid { path: String, must: String },
}

impl FieldError {
    pub(crate) fn within(self, name: &str) -> Self {
        let joined = |path: String| match path.is_empty() {
            true => name.to_owned(),
            false => format!("{name}.{path}"),
        };
        match self {
            FieldError::Unknown(words) => FieldError::Unknown(words),
            FieldError::Invalid { path, must } => FieldError::Invalid { path: joined(path), must },
        }
    }

    fn invalid(must: impl Into<String>) -> Self {
        FieldError::Invalid { path: String::new(), must: must.into() }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FieldError::Unknown(words) => write!(f, "{words}"),
            FieldError::Invalid { path, must } if path.is_empty() => write!(f, "The body {must}"),
            FieldError::Invalid { path, must } => write!(f, "{path} {must}"),
        }
    }
}

impl std::error::Error for FieldError {}

impl de::Error for FieldError {
    fn custom<T: fmt::Display>(words: T) -> Self {
        FieldError::invalid(format!("is not valid: {words}"))
    }

    fn invalid_type(given: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let expected = expected.to_string();
        FieldError::invalid(format!("must be {}{}", type_in_words(&expected), highest(given, &expected)))
    }

    fn invalid_value(given: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let expected = expected.to_string();
        FieldError::invalid(format!("must be {}{}", type_in_words(&expected), highest(given, &expected)))
    }

    fn unknown_variant(_: &str, known: &'static [&'static str]) -> Self {
        FieldError::invalid(format!("must be one of {}", known.join(", ")))
    }

    fn unknown_field(name: &str, known: &'static [&'static str]) -> Self {
        FieldError::Unknown(unknown_field_message(name, known))
    }

    fn invalid_length(length: usize, expected: &dyn Expected) -> Self {
        FieldError::invalid(format!(
            "has {length} entries, and must be {}",
            type_in_words(&expected.to_string())
        ))
    }

    fn duplicate_field(name: &'static str) -> Self {
        FieldError::Invalid { path: name.to_owned(), must: "is there twice".to_owned() }
    }

    fn missing_field(name: &'static str) -> Self {
        FieldError::Invalid { path: name.to_owned(), must: "is missing".to_owned() }
    }
}

/// The maximum of an integer type, if the given number exceeds it.
fn highest(given: Unexpected<'_>, expected: &str) -> String {
    let most = match expected {
        "u8" => u8::MAX.into(),
        "u16" => u16::MAX.into(),
        "u32" => u32::MAX.into(),
        "u64" | "usize" => u64::MAX,
        _ => return String::new(),
    };
    let is_too_high = match given {
        Unexpected::Unsigned(number) => number > most,
        Unexpected::Float(number) => number > most as f64,
        _ => false,
    };
    match is_too_high {
        true => format!(", at most {most}"),
        false => ", 0 or more".to_owned(),
    }
}

/// Readable names for serde's types.
fn type_in_words(expected: &str) -> &str {
    match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "an object",
        struct_name if struct_name.starts_with("struct ") => "an object",
        other => other,
    }
}

/// The most similar known name, if it is similar enough.
pub(crate) fn nearest<'a>(given: &str, known: &[&'a str]) -> Option<&'a str> {
    let plain = |name: &str| -> Vec<char> {
        name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
    };
    let given = plain(&shortened(given));
    let far = |name: &&&str| distance(&given, &plain(name));
    let near = known.iter().min_by_key(far)?;
    (distance(&given, &plain(near)) <= (given.len() / 3).max(1)).then_some(near)
}

/// Edit distance, in which swapping two neighbours counts as one step.
fn distance(from: &[char], to: &[char]) -> usize {
    let mut rows = vec![(0..=to.len()).collect::<Vec<usize>>()];
    for (i, a) in from.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in to.iter().enumerate() {
            let replaced = rows[i][j] + usize::from(a != b);
            let mut least = replaced.min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == to[j - 1] && from[i - 1] == *b {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[from.len()][to.len()]
}

fn shortened(name: &str) -> String {
    name.chars().take(60).collect()
}

/// The message for an unknown name.
pub(crate) fn unknown_field_message(name: &str, known: &[&str]) -> String {
    let shown = shortened(name).escape_debug().to_string();
    match nearest(name, known) {
        Some(near) => format!("{shown}: did you mean {near}?"),
        None if known.is_empty() => format!("{shown}: there is no such field here, nor any other"),
        None => format!("{shown}: there is no such field; there are {}", known.join(", ")),
    }
}

/// Parses an object and rejects duplicate fields, because one of the two values would be ignored.
pub(crate) fn parse_unique_object(text: &[u8]) -> serde_json::Result<Value> {
    struct UniqueFieldsVisitor;
    impl<'de> Visitor<'de> for UniqueFieldsVisitor {
        type Value = Map<String, Value>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: de::MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
            let mut fields = Map::new();
            while let Some((name, value)) = entries.next_entry::<String, Value>()? {
                if fields.contains_key(&name) {
                    return Err(de::Error::custom(format_args!("{:?} is there twice", shortened(&name))));
                }
                fields.insert(name, value);
            }
            Ok(fields)
        }
    }
    // Reports invalid JSON before it reports a value that is no object.
    serde_json::from_slice::<de::IgnoredAny>(text)?;
    let mut reader = serde_json::Deserializer::from_slice(text);
    let fields = de::Deserializer::deserialize_map(&mut reader, UniqueFieldsVisitor)?;
    reader.end()?;
    Ok(Value::Object(fields))
}

/// One type from all fields of an object.
pub(crate) fn deserialize_fields<T: DeserializeOwned>(
    object: Value,
    unknown: UnknownFieldPolicy,
) -> Result<T, FieldError> {
    T::deserialize(CoercingDeserializer {
        value: object,
        rules: Rules { unknown, coercions: Coercions::Reference },
    })
}

/// The same without coercions and unknown fields: for our own files, and for options that the reference does not have.
pub(crate) fn as_written<T: DeserializeOwned>(object: Value) -> Result<T, FieldError> {
    let rules = Rules { unknown: UnknownFieldPolicy::Refuse, coercions: Coercions::None };
    T::deserialize(CoercingDeserializer { value: object, rules })
}

/// One value of a query, with the coercions of the reference.
pub(crate) fn deserialize_parameter<T: DeserializeOwned>(value: &str) -> Option<T> {
    let rules = Rules { unknown: UnknownFieldPolicy::Refuse, coercions: Coercions::Reference };
    T::deserialize(CoercingDeserializer { value: value.into(), rules }).ok()
}

/// Two types from one object, each from the fields that it declares. `serde(flatten)` supports neither coercions nor
/// unknown fields.
pub(crate) fn deserialize_split_fields<A: DeserializeOwned, B: DeserializeOwned>(
    object: Value,
    unknown_fields: UnknownFieldPolicy,
) -> Result<(A, B), FieldError> {
    let Value::Object(fields) = object else { return Err(FieldError::invalid("must be an object")) };
    let (of_a, of_b) = (field_names_of::<A>(), field_names_of::<B>());
    let (mut a, mut b) = (Map::new(), Map::new());
    for (name, value) in fields {
        if of_a.contains(&name.as_str()) {
            a.insert(name, value);
        } else if of_b.contains(&name.as_str()) {
            b.insert(name, value);
        } else if unknown_fields == UnknownFieldPolicy::Refuse {
            return Err(FieldError::Unknown(unknown_field_message(&name, &[of_a, of_b].concat())));
        }
    }
    Ok((
        deserialize_fields(Value::Object(a), unknown_fields)?,
        deserialize_fields(Value::Object(b), unknown_fields)?,
    ))
}

/// The names and aliases of a struct's fields, as its `Deserialize` declares them.
fn field_names_of<T: DeserializeOwned>() -> &'static [&'static str] {
    let mut found: &'static [&'static str] = &[];
    // This always fails: the probe stops when it has the names.
    let _ = T::deserialize(FieldNameProbe(&mut found));
    found
}

struct FieldNameProbe<'a>(&'a mut &'static [&'static str]);

impl<'de> de::Deserializer<'de> for FieldNameProbe<'_> {
    type Error = FieldError;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, FieldError> {
        Err(FieldError::invalid("has no fields"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, FieldError> {
        *self.0 = fields;
        Err(FieldError::invalid("has fields"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// A value that coerces itself to the requested type.
struct CoercingDeserializer {
    value: Value,
    rules: Rules,
}

impl CoercingDeserializer {
    fn unexpected(&self) -> Unexpected<'_> {
        match &self.value {
            Value::Null => Unexpected::Unit,
            Value::Bool(flag) => Unexpected::Bool(*flag),
            Value::Number(_) => Unexpected::Other("number"),
            Value::String(text) => Unexpected::Str(text),
            Value::Array(_) => Unexpected::Seq,
            Value::Object(_) => Unexpected::Map,
        }
    }

    /// A scalar, also as the only element of a list.
    fn scalar(self) -> CoercingDeserializer {
        let CoercingDeserializer { value, rules } = self;
        let value = match value {
            Value::Array(mut list) if list.len() == 1 && rules.coercions == Coercions::Reference => {
                list.pop().unwrap_or_default()
            }
            value => value,
        };
        CoercingDeserializer { value, rules }
    }

    /// A number that may be written as text.
    fn number(self) -> CoercingDeserializer {
        let CoercingDeserializer { value, rules } = self.scalar();
        if rules.coercions == Coercions::None {
            return CoercingDeserializer { value, rules };
        }
        let value = match value {
            Value::String(text) => match (text.parse::<u64>(), text.parse::<i64>(), text.parse::<f64>()) {
                (Ok(number), _, _) => number.into(),
                (_, Ok(number), _) => number.into(),
                (_, _, Ok(number)) if number.is_finite() => whole(number).map_or(number.into(), Value::from),
                _ => Value::String(text),
            },
            Value::Number(number) if number.is_f64() => {
                let float = number.as_f64().unwrap_or_default();
                whole(float).map_or(Value::Number(number), Value::from)
            }
            value => value,
        };
        CoercingDeserializer { value, rules }
    }

    /// A number or a boolean as text.
    fn text(self) -> CoercingDeserializer {
        let CoercingDeserializer { value, rules } = self.scalar();
        let value = match (rules.coercions, value) {
            (Coercions::Reference, Value::Number(number)) => Value::String(number_text(&number)),
            (Coercions::Reference, Value::Bool(flag)) => Value::String(flag.to_string()),
            (Coercions::Reference | Coercions::None, value) => value,
        };
        CoercingDeserializer { value, rules }
    }

    fn reject_unknown(self, fields: &'static [&'static str]) -> Result<CoercingDeserializer, FieldError> {
        let strange = |object: &Map<String, Value>| {
            object.keys().find(|name| !fields.contains(&name.as_str())).cloned()
        };
        match (&self.value, self.rules.unknown) {
            (Value::Object(object), UnknownFieldPolicy::Refuse) => match strange(object) {
                Some(name) => Err(FieldError::Unknown(unknown_field_message(&name, fields))),
                None => Ok(self),
            },
            (_, _) => Ok(self),
        }
    }
}

/// A number without a fraction, in any notation.
fn whole(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64)
}

/// As JavaScript formats it, because the reference runs there: 5.0 is "5".
fn number_text(number: &Number) -> String {
    match number.as_f64().filter(|_| number.is_f64()).and_then(whole) {
        Some(whole) => whole.to_string(),
        None => number.to_string(),
    }
}

macro_rules! numbers {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
            self.number().deserialize_any(visitor)
        })*
    };
}

impl<'de> de::Deserializer<'de> for CoercingDeserializer {
    type Error = FieldError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
        let rules = self.rules;
        match self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(flag) => visitor.visit_bool(flag),
            Value::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
                (Some(number), _, _) => visitor.visit_u64(number),
                (_, Some(number), _) => visitor.visit_i64(number),
                (_, _, number) => visitor.visit_f64(number.unwrap_or(f64::NAN)),
            },
            Value::String(text) => visitor.visit_string(text),
            Value::Array(list) => visitor.visit_seq(CoercingSeqAccess { items: list.into_iter(), rules }),
            Value::Object(fields) => {
                visitor.visit_map(CoercingMapAccess { entries: fields.into_iter(), value: None, rules })
            }
        }
    }

    numbers! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_u8 deserialize_u16 deserialize_u32
        deserialize_u64 deserialize_f32 deserialize_f64
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
        let mut field = self.scalar();
        if field.rules.coercions == Coercions::None {
            return field.deserialize_any(visitor);
        }
        match &field.value {
            Value::String(text) if text == "true" => field.value = Value::Bool(true),
            Value::String(text) if text == "false" => field.value = Value::Bool(false),
            Value::Number(number) if number.as_u64() == Some(1) => field.value = Value::Bool(true),
            Value::Number(number) if number.as_u64() == Some(0) => field.value = Value::Bool(false),
            _ => {}
        }
        field.deserialize_any(visitor)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
        self.text().deserialize_any(visitor)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
        self.text().deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, FieldError> {
        let is_one = matches!(self.value, Value::String(_) | Value::Number(_) | Value::Bool(_));
        if is_one && self.rules.coercions == Coercions::Reference {
            self.value = Value::Array(vec![self.value]);
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, FieldError> {
        // serde would read a list as the fields in their order.
        if !self.value.is_object() {
            return Err(de::Error::invalid_type(self.unexpected(), &"a map"));
        }
        self.reject_unknown(fields)?.deserialize_any(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, FieldError> {
        match self.scalar().value {
            Value::String(text) => visitor.visit_enum(text.into_deserializer()),
            value => value
                .deserialize_enum(name, variants, visitor)
                .map_err(|_| FieldError::invalid(format!("must be one of {}", variants.join(", ")))),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, FieldError> {
        visitor.visit_newtype_struct(self)
    }

    serde::forward_to_deserialize_any! {
        i128 u128 char bytes byte_buf unit unit_struct tuple tuple_struct map identifier ignored_any
    }
}

struct CoercingSeqAccess {
    items: std::vec::IntoIter<Value>,
    rules: Rules,
}

impl<'de> de::SeqAccess<'de> for CoercingSeqAccess {
    type Error = FieldError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, FieldError> {
        let Some(value) = self.items.next() else { return Ok(None) };
        seed.deserialize(CoercingDeserializer { value, rules: self.rules }).map(Some)
    }
}

struct CoercingMapAccess {
    entries: serde_json::map::IntoIter,
    value: Option<(String, Value)>,
    rules: Rules,
}

impl<'de> de::MapAccess<'de> for CoercingMapAccess {
    type Error = FieldError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, FieldError> {
        let Some((name, value)) = self.entries.next() else { return Ok(None) };
        let key = seed.deserialize(name.as_str().into_deserializer())?;
        self.value = Some((name, value));
        Ok(Some(key))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, FieldError> {
        let (name, value) = self.value.take().unwrap_or_default();
        let field = CoercingDeserializer { value, rules: self.rules };
        seed.deserialize(field).map_err(|error| error.within(&shortened(&name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::json;
    use std::collections::BTreeMap;

    #[derive(Deserialize, Debug, PartialEq, Default)]
    #[serde(rename_all = "camelCase", default)]
    struct Choices {
        model: Option<String>,
        #[serde(alias = "effort")]
        reasoning_effort: Option<String>,
        max_turns: Option<u32>,
        max_budget_usd: Option<f64>,
        streaming: Option<bool>,
        allowed_tools: Option<Vec<String>>,
        env: BTreeMap<String, String>,
        inner: Option<Inner>,
    }

    #[derive(Deserialize, Debug, PartialEq)]
    struct Inner {
        depth: u64,
    }

    #[derive(Deserialize, Debug, PartialEq)]
    struct Subject {
        agent: String,
    }

    fn strict(value: Value) -> Result<Choices, String> {
        deserialize_fields(value, UnknownFieldPolicy::Refuse).map_err(|error| error.to_string())
    }

    #[test]
    fn values_in_a_file_are_not_coerced() {
        let read = |value: Value| as_written::<Choices>(value).map_err(|error| error.to_string());
        assert_eq!(read(json!({ "maxTurns": 5 })).expect("good").max_turns, Some(5));
        for (given, words) in [
            (json!({ "streaming": 1 }), "streaming must be true or false"),
            (json!({ "model": 5 }), "model must be a string"),
            (json!({ "maxTurns": "5" }), "maxTurns must be a whole number, 0 or more"),
            (json!({ "allowedTools": "Read" }), "allowedTools must be a list"),
            (json!({ "modle": "x" }), "modle: did you mean model?"),
        ] {
            assert_eq!(read(given).expect_err("refused"), words);
        }
    }

    #[test]
    fn a_misspelt_field_is_refused_with_the_nearest_one() {
        for (given, words) in [
            (json!({ "modle": "x" }), "modle: did you mean model?"),
            (json!({ "max_turns": 5 }), "max_turns: did you mean maxTurns?"),
            (json!({ "allowedTool": [] }), "allowedTool: did you mean allowedTools?"),
            (json!({ "efort": "low" }), "efort: did you mean effort?"),
            (json!({ "inner": { "dept": 1 } }), "dept: did you mean depth?"),
            (
                json!({ "zebra": 1 }),
                "zebra: there is no such field; there are model, effort, reasoningEffort,",
            ),
        ] {
            let error = strict(given).expect_err("refused");
            assert!(error.starts_with(words), "{error}");
        }
        let long = strict(json!({ "é\u{1b}[31m".repeat(5000): 1 })).expect_err("refused");
        assert!(long.len() < 1000 && !long.contains('\u{1b}'), "{long}");
        assert_eq!(
            deserialize_fields::<Choices>(json!({ "modle": "x" }), UnknownFieldPolicy::Ignore),
            Ok(Choices::default())
        );
    }

    #[test]
    fn values_are_coerced_as_the_reference_does() {
        let given = json!({
            "model": "5", "maxTurns": "5", "maxBudgetUsd": "0.5", "streaming": "true", "allowedTools": "Bash",
            "env": { "PORT": "8080" }, "inner": { "depth": ["7"] }, "effort": ["low"],
        });
        let choices = Choices {
            model: Some("5".to_owned()),
            reasoning_effort: Some("low".to_owned()),
            max_turns: Some(5),
            max_budget_usd: Some(0.5),
            streaming: Some(true),
            allowed_tools: Some(vec!["Bash".to_owned()]),
            env: [("PORT", "8080")].map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            inner: Some(Inner { depth: 7 }),
        };
        assert_eq!(strict(given), Ok(choices));
        let numbers = json!({ "A": 8080, "B": -1, "C": 5.0, "D": 0.5, "E": true, "F": [7] });
        let texts = ["8080", "-1", "5", "0.5", "true", "7"].map(str::to_owned);
        let env = strict(json!({ "model": 5, "allowedTools": [5, false], "env": numbers })).expect("taken");
        assert_eq!(env.env.into_values().collect::<Vec<_>>(), texts);
        assert_eq!(
            (env.model, env.allowed_tools),
            (Some("5".into()), Some(vec!["5".into(), "false".into()]))
        );
        assert_eq!(strict(json!({ "maxTurns": 5.0 })).map(|choices| choices.max_turns), Ok(Some(5)));
        assert_eq!(strict(json!({ "maxTurns": null })), Ok(Choices::default()));
    }

    #[test]
    fn other_values_are_refused_by_name_in_plain_words() {
        for (given, words) in [
            (json!({ "maxTurns": "many" }), "maxTurns must be a whole number, 0 or more"),
            (json!({ "maxTurns": -1 }), "maxTurns must be a whole number, 0 or more"),
            (json!({ "maxTurns": 1.5 }), "maxTurns must be a whole number, 0 or more"),
            (json!({ "maxTurns": 5e9 }), "maxTurns must be a whole number, at most 4294967295"),
            (json!({ "maxTurns": "5000000000" }), "maxTurns must be a whole number, at most 4294967295"),
            (json!({ "model": {} }), "model must be a string"),
            (json!({ "model": [5, 6] }), "model must be a string"),
            (json!({ "env": { "PORT": null } }), "env.PORT must be a string"),
            (json!({ "streaming": "yes" }), "streaming must be true or false"),
            (json!({ "inner": { "depth": [] } }), "inner.depth must be a whole number, 0 or more"),
            (json!({ "inner": {} }), "inner.depth is missing"),
            (json!({ "inner": [1] }), "inner must be an object"),
            (json!([1]), "The body must be an object"),
        ] {
            assert_eq!(strict(given), Err(words.to_owned()));
        }
    }

    #[test]
    fn two_in_one_object_each_take_their_own_and_know_each_others_names() {
        let both = |given| {
            deserialize_split_fields::<Subject, Choices>(given, UnknownFieldPolicy::Refuse)
                .map_err(|e| e.to_string())
        };
        let (subject, choices) = both(json!({ "agent": "a", "maxTurns": "2" })).expect("both");
        assert_eq!((subject.agent.as_str(), choices.max_turns), ("a", Some(2)));
        assert_eq!(both(json!({ "agnet": "a" })), Err("agnet: did you mean agent?".to_owned()));
        assert_eq!(both(json!({ "modle": "a" })), Err("modle: did you mean model?".to_owned()));
        assert_eq!(both(json!({})), Err("agent is missing".to_owned()));
    }
}
