//! Looking into JSON without changing it: every value is the raw text of the
//! file, so that what is kept is kept byte for byte.
//!
//! Each function looks one level deep; what lies below is skipped without
//! recursion, so that no nesting of the input is too deep.

use bytes::Bytes;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// The fields of a JSON object: raw keys with their quotes, and raw values.
#[derive(Clone, Debug)]
pub(super) struct Object<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Object<'a> {
    /// The object that `raw` holds; none if it holds another value.
    pub(super) fn parse(raw: &'a str) -> Option<Self> {
        // Spares the parser's error for the many values that are no object.
        if !raw.starts_with('{') {
            return None;
        }
        serde_json::from_str(raw).ok()
    }

    /// The raw value of a field; the last one, as in most parsers, if there are
    /// several.
    pub(super) fn get(&self, key: &str) -> Option<&'a str> {
        self.0.iter().rev().find(|(raw, _)| unquoted(raw) == key).map(|(_, value)| *value)
    }

    /// The raw value of a field, unless it is null.
    pub(super) fn value(&self, key: &str) -> Option<&'a str> {
        self.get(key).filter(|value| *value != "null")
    }

    /// The text of a field; none if it is no string.
    pub(super) fn text(&self, key: &str) -> Option<Cow<'a, str>> {
        text(self.get(key)?)
    }

    /// The object in a field; none if it is none.
    pub(super) fn object(&self, key: &str) -> Option<Self> {
        Self::parse(self.get(key)?)
    }

    /// The elements of the array in a field; none if it is none.
    pub(super) fn elements(&self, key: &str) -> Option<Vec<&'a str>> {
        elements(self.get(key)?)
    }

    /// The number in a field; 0 if it is no whole one.
    pub(super) fn number(&self, key: &str) -> u64 {
        self.get(key).and_then(|raw| raw.parse().ok()).unwrap_or(0)
    }

    /// Whether a field is `true`.
    pub(super) fn is_true(&self, key: &str) -> bool {
        self.get(key) == Some("true")
    }

    /// Names of the fields, as they are written.
    pub(super) fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.0.iter().map(|(key, _)| unquoted(key))
    }

    /// The object without some of its fields, put together from the raw rest;
    /// none if nothing is left.
    pub(super) fn without(&self, keys: &[&str]) -> Option<Bytes> {
        let rest: Vec<_> = self.0.iter().filter(|(key, _)| !keys.contains(&unquoted(key))).collect();
        (!rest.is_empty()).then(|| {
            let fields: Vec<String> = rest.iter().map(|(key, value)| format!("{key}:{value}")).collect();
            Bytes::from(format!("{{{}}}", fields.join(",")))
        })
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Object<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                // Raw keys, because a lone surrogate in one is no reason to
                // refuse the object.
                while let Some(key) = map.next_key::<&'de RawValue>()? {
                    if !key.get().starts_with('"') {
                        return Err(A::Error::custom("a key is a string"));
                    }
                    fields.push((key.get(), map.next_value::<&'de RawValue>()?.get()));
                }
                Ok(Object(fields))
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

/// The raw elements of the array that `raw` holds; none if it holds another
/// value.
pub(super) fn elements(raw: &str) -> Option<Vec<&str>> {
    if !raw.starts_with('[') {
        return None;
    }
    let values: Vec<&RawValue> = serde_json::from_str(raw).ok()?;
    Some(values.into_iter().map(RawValue::get).collect())
}

/// The text of a raw JSON string; none if it is none. A string that no Unicode
/// text can stand for, because it escapes a lone surrogate, is given as it is
/// written.
pub(super) fn text(raw: &str) -> Option<Cow<'_, str>> {
    if !raw.starts_with('"') {
        return None;
    }
    let inner = unquoted(raw);
    if !inner.contains('\\') {
        return Some(Cow::Borrowed(inner));
    }
    Some(serde_json::from_str(raw).map_or(Cow::Borrowed(inner), Cow::Owned))
}

/// Puts an object together from raw values.
pub(super) fn compose(fields: &[(&str, &str)]) -> Bytes {
    let fields: Vec<String> = fields.iter().map(|(key, raw)| format!("\"{key}\":{raw}")).collect();
    Bytes::from(format!("{{{}}}", fields.join(",")))
}

/// Puts an array together from raw values.
pub(super) fn array(elements: &[&str]) -> String {
    format!("[{}]", elements.join(","))
}

/// A JSON string that stands for `text`.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn unquoted(raw: &str) -> &str {
    raw.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_the_raw_text() {
        let object = Object::parse(r#"{ "a" : 1.0e5, "b":"\u00e9", "a": [ 1 ,2],"n":null}"#).unwrap();
        assert_eq!(object.get("a"), Some("[ 1 ,2]"));
        assert_eq!(object.elements("a"), Some(vec!["1", "2"]));
        assert_eq!(object.get("b"), Some(r#""\u00e9""#));
        assert_eq!(object.text("b").as_deref(), Some("é"));
        assert_eq!((object.get("n"), object.value("n")), (Some("null"), None));
        assert_eq!(object.without(&["a", "n"]), Some(Bytes::from(r#"{"b":"\u00e9"}"#)));
        assert_eq!(object.without(&["a", "b", "n"]), None);
    }

    #[test]
    fn a_lone_surrogate_is_no_reason_to_refuse_an_object() {
        let object = Object::parse(r#"{"\ud99c":1,"a":"x\ud99cy"}"#).unwrap();
        assert_eq!(object.text("a").as_deref(), Some(r"x\ud99cy"));
        assert_eq!(object.keys().collect::<Vec<_>>(), [r"\ud99c", "a"]);
    }

    #[test]
    fn deep_nesting_is_read_without_recursion() {
        let deep = format!(r#"{{"a":{}1{}}}"#, "[".repeat(200_000), "]".repeat(200_000));
        assert_eq!(Object::parse(&deep).unwrap().get("a").map(str::len), Some(400_001));
    }

    #[test]
    fn other_values_are_none() {
        assert!(Object::parse("[1]").is_none() && Object::parse("{1:2}").is_none());
        assert!(elements("{}").is_none() && elements("[1,]").is_none());
        assert!(text("1").is_none());
    }
}
