//! Payloads as a whole: what may be stored, and in which form.

use super::json;
use bytes::Bytes;
use serde::de::IgnoredAny;

/// Why a payload was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// It is not UTF-8.
    #[error("is not UTF-8 from byte {offset} on")]
    NotUtf8 {
        /// Bytes before the first that is not.
        offset: usize,
    },
    /// It is not one JSON value.
    #[error("is not one JSON value: {message}")]
    NotJson {
        /// What is wrong, with line and column.
        message: String,
    },
    /// It is a JSON value, but not an object.
    #[error("is not a JSON object")]
    NotObject,
}

/// Checks that `payload` is one JSON object in UTF-8. It may nest as deep as it
/// likes, and its strings and numbers need not fit any type.
pub fn check_object(payload: &[u8]) -> Result<(), PayloadError> {
    check_value(payload)?;
    if json::Value::of(payload).is_object() { Ok(()) } else { Err(PayloadError::NotObject) }
}

/// Checks that `payload` is one JSON value in UTF-8, as [`check_object`] does
/// for an object.
pub fn check_value(payload: &[u8]) -> Result<(), PayloadError> {
    let text = std::str::from_utf8(payload).map_err(|e| PayloadError::NotUtf8 { offset: e.valid_up_to() })?;
    // Skipping a value takes no stack for its nesting.
    match serde_json::from_str::<IgnoredAny>(text) {
        Ok(_) => Ok(()),
        Err(error) => Err(PayloadError::NotJson { message: error.to_string() }),
    }
}

/// `payload` with spaces for the line breaks between its tokens, so that it
/// stays on one line of a segment. In a JSON string a line break is always
/// escaped, so any that is found stands between tokens.
pub fn to_single_line(payload: Bytes) -> Bytes {
    if memchr::memchr2(b'\n', b'\r', &payload).is_none() {
        return payload;
    }
    payload.iter().map(|&byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_json_object_is_accepted() {
        let levels = 200_000;
        let deep = [r#"{"a":"#.repeat(levels), "1".to_owned(), "}".repeat(levels)].concat();
        let arrays = ["{\"a\":".to_owned(), "[".repeat(levels), "]".repeat(levels), "}".to_owned()].concat();
        for payload in [
            "{}",
            " {\"a\"\r\n:\t1} \n",
            r#"{"a":"\u0000","b":"\ud800","c":"\udc00\ud800"}"#,
            r#"{"n":12345678901234567890123,"x":1e400,"y":-0.0E-999}"#,
            r#"{"a":1,"a":2}"#,
            &deep,
            &arrays,
        ] {
            assert_eq!(check_object(payload.as_bytes()), Ok(()), "{payload:.40}");
        }
    }

    #[test]
    fn anything_else_is_refused_with_its_reason() {
        let refused = |payload: &[u8]| check_object(payload).unwrap_err();
        assert_eq!(refused(b"{\"a\":\"\xff\"}"), PayloadError::NotUtf8 { offset: 6 });
        for other in ["[]", "1", "null", "\"{}\"", " [{}]"] {
            assert_eq!(refused(other.as_bytes()), PayloadError::NotObject, "{other}");
        }
        for broken in [
            "",
            " ",
            "{",
            "{}{}",
            "{} x",
            "{\"a\":01}",
            "{\"a\":\"\n\"}",
            "{'a':1}",
            "{\"a\":1,}",
            "\u{feff}{}",
            "{\"a\":NaN}",
        ] {
            assert!(matches!(refused(broken.as_bytes()), PayloadError::NotJson { .. }), "{broken}");
        }
        assert_eq!(
            refused(b"{]").to_string(),
            "is not one JSON value: key must be a string at line 1 column 2"
        );
    }

    #[test]
    fn line_breaks_between_tokens_become_spaces_byte_for_byte() {
        let payload = Bytes::from_static(b"{\r\n\"a\" :\n[1,\r2],\"b\":\"x\\n y\"}\n");
        assert_eq!(to_single_line(payload), r#"{  "a" : [1, 2],"b":"x\n y"} "#);
        let plain = Bytes::from_static(b"{\"a\":\"x\\n\"}");
        assert_eq!(
            to_single_line(plain.clone()).as_ptr(),
            plain.as_ptr(),
            "nothing to change, nothing copied"
        );
    }
}
