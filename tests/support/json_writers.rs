//! JSON as other writers have it.

use serde_json::Value;
use std::fmt::Write as _;

/// As Python's `json.dumps` writes it: ASCII only, spaces after separators.
pub(crate) fn as_python(value: &Value) -> String {
    match value {
        Value::String(text) => {
            let escaped = serde_json::to_string(text).unwrap();
            escaped.chars().fold(String::new(), |mut text, c| {
                match c {
                    ' '..='~' => text.push(c),
                    _ => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                        write!(text, "\\u{unit:04x}").unwrap();
                    }),
                }
                text
            })
        }
        Value::Array(values) => {
            format!("[{}]", values.iter().map(as_python).collect::<Vec<_>>().join(", "))
        }
        Value::Object(members) => {
            let members = members.iter();
            let members: Vec<_> =
                members.map(|(key, value)| format!("\"{key}\": {}", as_python(value))).collect();
            format!("{{{}}}", members.join(", "))
        }
        other => other.to_string(),
    }
}
