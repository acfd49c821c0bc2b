//! Outlines a message: its calls, its results, and a digest to compare it. Streams over the JSON without a tree, because
//! the content is untrusted and a tree may need a hundred times the memory.

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, MapAccess, SeqAccess, Visitor},
};
use std::{
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ContentOutline {
    pub(super) calls: Vec<String>,
    pub(super) results: Vec<String>,
    /// The message has a call or a result, even without an id.
    pub(super) has_call_or_result: bool,
    /// Equal content has an equal digest, whatever the order of object fields.
    pub(super) digest: u64,
}

/// Empty content equals `null`.
impl Default for ContentOutline {
    fn default() -> ContentOutline {
        let digest = digest(|hasher| JsonShape::Null.hash(hasher));
        ContentOutline { calls: Vec::new(), results: Vec::new(), has_call_or_result: false, digest }
    }
}

impl<'de> Deserialize<'de> for ContentOutline {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ContentOutline, D::Error> {
        let (mut content, mut hasher) = (ContentOutline::default(), DefaultHasher::new());
        HashingVisitor { hasher: &mut hasher, see: ValueCapture::Content(&mut content) }
            .deserialize(deserializer)?;
        content.digest = hasher.finish();
        Ok(content)
    }
}

impl ContentOutline {
    fn note(&mut self, block: ContentBlockHeader) {
        match block.kind.as_deref() {
            Some("tool_use") => {
                self.has_call_or_result = true;
                self.calls.extend(block.id);
            }
            Some("tool_result") => {
                self.has_call_or_result = true;
                self.results.extend(block.tool_use_id);
            }
            Some(_) | None => {}
        }
    }
}

/// The fields that we need of a content block.
#[derive(Default)]
struct ContentBlockHeader {
    kind: Option<String>,
    id: Option<String>,
    tool_use_id: Option<String>,
}

impl ContentBlockHeader {
    fn field(&mut self, name: BlockFieldName) -> ValueCapture<'_> {
        let field = match name {
            BlockFieldName::Kind => &mut self.kind,
            BlockFieldName::Id => &mut self.id,
            BlockFieldName::ToolUseId => &mut self.tool_use_id,
            BlockFieldName::Other => return ValueCapture::Nothing,
        };
        // The last of two fields with the same name counts.
        *field = None;
        ValueCapture::Text(field)
    }
}

/// What to extract from a value besides its hash.
enum ValueCapture<'s> {
    Nothing,
    Content(&'s mut ContentOutline),
    Block(&'s mut ContentBlockHeader),
    Text(&'s mut Option<String>),
}

#[derive(Hash)]
enum JsonShape {
    Null,
    Bool,
    Number,
    Text,
    List,
    Object,
    /// The end of a list or an object.
    End,
}

struct HashingVisitor<'r> {
    hasher: &'r mut DefaultHasher,
    see: ValueCapture<'r>,
}

impl<'de> DeserializeSeed<'de> for HashingVisitor<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl HashingVisitor<'_> {
    fn scalar<E>(self, shape: JsonShape, value: impl Hash) -> Result<(), E> {
        (shape, value).hash(self.hasher);
        Ok(())
    }
}

impl<'de> Visitor<'de> for HashingVisitor<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.scalar(JsonShape::Null, ())
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        self.scalar(JsonShape::Bool, value)
    }

    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        self.scalar(JsonShape::Number, (0, value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<(), E> {
        self.scalar(JsonShape::Number, (1, value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<(), E> {
        self.scalar(JsonShape::Number, (2, value.to_bits()))
    }

    fn visit_str<E>(self, value: &str) -> Result<(), E> {
        (JsonShape::Text, value).hash(self.hasher);
        if let ValueCapture::Text(text) = self.see {
            *text = Some(value.to_owned());
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let HashingVisitor { hasher, mut see } = self;
        JsonShape::List.hash(hasher);
        loop {
            let mut block = ContentBlockHeader::default();
            let inner = if let ValueCapture::Content(_) = see {
                ValueCapture::Block(&mut block)
            } else {
                ValueCapture::Nothing
            };
            if list.next_element_seed(HashingVisitor { hasher, see: inner })?.is_none() {
                break;
            }
            if let ValueCapture::Content(content) = &mut see {
                content.note(block);
            }
        }
        JsonShape::End.hash(hasher);
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let HashingVisitor { hasher, mut see } = self;
        let mut fields: Vec<(u64, u64)> = Vec::new();
        while let Some((key, name)) = map.next_key_seed(FieldNameSeed)? {
            let see = if let ValueCapture::Block(block) = &mut see {
                block.field(name)
            } else {
                ValueCapture::Nothing
            };
            let mut value = DefaultHasher::new();
            map.next_value_seed(HashingVisitor { hasher: &mut value, see })?;
            fields.push((key, value.finish()));
        }
        // Sorted by name. The sort is stable, so the last of several equal names counts.
        fields.sort_by_key(|(key, _)| *key);
        JsonShape::Object.hash(hasher);
        for (at, (key, value)) in fields.iter().enumerate() {
            if fields.get(at + 1).is_none_or(|(next, _)| next != key) {
                (key, value).hash(hasher);
            }
        }
        JsonShape::End.hash(hasher);
        Ok(())
    }
}

/// Reads a field name and hashes it.
struct FieldNameSeed;

enum BlockFieldName {
    Kind,
    Id,
    ToolUseId,
    Other,
}

impl<'de> DeserializeSeed<'de> for FieldNameSeed {
    type Value = (u64, BlockFieldName);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(u64, BlockFieldName), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for FieldNameSeed {
    type Value = (u64, BlockFieldName);

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a name")
    }

    fn visit_str<E>(self, key: &str) -> Result<(u64, BlockFieldName), E> {
        let name = match key {
            "type" => BlockFieldName::Kind,
            "id" => BlockFieldName::Id,
            "tool_use_id" => BlockFieldName::ToolUseId,
            _ => BlockFieldName::Other,
        };
        Ok((digest(|hasher| key.hash(hasher)), name))
    }
}

fn digest(hash: impl FnOnce(&mut DefaultHasher)) -> u64 {
    let mut hasher = DefaultHasher::new();
    hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(text: &str) -> ContentOutline {
        serde_json::from_str(text).expect("JSON")
    }

    fn same(one: &str, other: &str) -> bool {
        content(one).digest == content(other).digest
    }

    #[test]
    fn the_same_words_are_the_same_however_they_are_written() {
        assert!(same(r#"[{"type":"text","text":"a"}]"#, r#"[ {"text":"\u0061", "type":"text"} ]"#));
        assert!(same(r#"{"a":{"b":1,"c":[]},"d":null}"#, r#"{"d":null,"a":{"c":[],"b":1}}"#));
        assert!(same("[1e2, 0.5]", "[100.0, 5e-1]"));
        assert!(same(r#"{"a":1,"a":2}"#, r#"{"a":2}"#), "of two of one name the last counts");
        assert_eq!(content("null"), ContentOutline::default());
    }

    #[test]
    fn other_words_are_others() {
        let all = [
            "null",
            "true",
            "false",
            "0",
            "1",
            "-1",
            "1.0",
            "\"\"",
            "\"1\"",
            "\"a\"",
            "[]",
            "[[]]",
            "[[],[]]",
            "[null]",
            "[1,2]",
            "[2,1]",
            "[12]",
            "[[1],2]",
            "[[1,2]]",
            "{}",
            "[{}]",
            r#"{"a":1}"#,
            r#"{"a":"1"}"#,
            r#"{"b":1}"#,
            r#"{"a":1,"b":1}"#,
            r#"{"a":{"b":1}}"#,
            r#"[{"a":1},{"b":1}]"#,
            r#"["a",1]"#,
            r#"["ab"]"#,
            r#"["a","b"]"#,
            r#"[{"type":"text","text":"a"}]"#,
            r#"[{"type":"text","text":"b"}]"#,
        ];
        let digests: std::collections::HashSet<u64> = all.iter().map(|text| content(text).digest).collect();
        assert_eq!(digests.len(), all.len());
    }

    #[test]
    fn calls_and_outcomes_are_seen_where_they_stand_and_nowhere_else() {
        let seen = |text: &str| {
            let ContentOutline { calls, results, has_call_or_result: binds, .. } = content(text);
            (calls.join(" "), results.join(" "), binds)
        };
        let both = r#"["x",{"type":"tool_use","id":"a"},{"id":"b","type":"tool_use"},{"tool_use_id":"c","type":"tool_result"}]"#;
        assert_eq!(seen(both), ("a b".into(), "c".into(), true));
        assert_eq!(seen(r#"[{"type":"tool_use","id":5}]"#), (String::new(), String::new(), true));
        assert_eq!(seen(r#"[{"type":"tool_use","id":"a","id":5}]"#), (String::new(), String::new(), true));
        for none in [
            r#"{"type":"tool_use","id":"a"}"#,
            r#"[[{"type":"tool_use","id":"a"}]]"#,
            r#"[{"type":"text","x":{"type":"tool_use","id":"a"}}]"#,
            r#"[{"type":"tool_use","type":"text","id":"a"}]"#,
        ] {
            assert_eq!(seen(none), (String::new(), String::new(), false), "{none}");
        }
    }
}
