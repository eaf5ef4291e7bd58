//! The text of a JSON string token.

use std::borrow::Cow;

/// The text that a JSON string token stands for, without an allocation where it
/// has no escapes.
///
/// Total: a lone surrogate and what is not UTF-8 become U+FFFD, an unknown
/// escape becomes the character behind the backslash, and quotes may be
/// missing.
pub(super) fn decode(token: &[u8]) -> Cow<'_, str> {
    let inner = token.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(token);
    match lossy(inner) {
        Cow::Borrowed(text) if memchr::memchr(b'\\', inner).is_none() => Cow::Borrowed(text),
        text => Cow::Owned(unescape(&text)),
    }
}

/// Bytes as text; what is not UTF-8 becomes U+FFFD.
pub(super) fn lossy(bytes: &[u8]) -> Cow<'_, str> {
    // Several times as fast as `from_utf8_lossy` where all is well.
    std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

fn unescape(mut rest: &str) -> String {
    let mut text = String::with_capacity(rest.len());
    while let Some((plain, escape)) =
        memchr::memchr(b'\\', rest.as_bytes()).and_then(|at| rest.split_at_checked(at))
    {
        text.push_str(plain);
        let (character, after) = escaped(escape.strip_prefix('\\').unwrap_or_default());
        text.push(character);
        rest = after;
    }
    text.push_str(rest);
    text
}

/// JSON in which no more is escaped than must be.
pub(super) fn with_few_escapes(json: &[u8]) -> Cow<'_, str> {
    let json = lossy(json);
    if memchr::memchr(b'\\', json.as_bytes()).is_none() {
        return json;
    }
    let mut plain = String::with_capacity(json.len());
    let mut rest = &*json;
    while let Some((before, escape)) =
        memchr::memchr(b'\\', rest.as_bytes()).and_then(|at| rest.split_at_checked(at))
    {
        plain.push_str(before);
        let escape = escape.strip_prefix('\\').unwrap_or_default();
        let (character, after) = escaped(escape);
        // Half of a surrogate pair is no character.
        let is_half = character == char::REPLACEMENT_CHARACTER
            && !escape.get(1..5).is_some_and(|digits| digits.eq_ignore_ascii_case("fffd"));
        if is_half || character < ' ' || matches!(character, '"' | '\\') {
            let kept = escape.chars().next().map_or(0, char::len_utf8);
            plain.push('\\');
            plain.push_str(escape.get(..kept).unwrap_or_default());
            rest = escape.get(kept..).unwrap_or_default();
        } else {
            plain.push(character);
            rest = after;
        }
    }
    plain.push_str(rest);
    Cow::Owned(plain)
}

/// The character that an escape stands for, and what comes after it.
fn escaped(escape: &str) -> (char, &str) {
    let mut characters = escape.chars();
    match characters.next() {
        None => ('\\', ""),
        Some('u') => unicode(characters.as_str()),
        Some('n') => ('\n', characters.as_str()),
        Some('t') => ('\t', characters.as_str()),
        Some('r') => ('\r', characters.as_str()),
        Some('b') => ('\u{8}', characters.as_str()),
        Some('f') => ('\u{c}', characters.as_str()),
        Some(other) => (other, characters.as_str()),
    }
}

fn unicode(digits: &str) -> (char, &str) {
    let Some((unit, rest)) = code_unit(digits) else {
        return (char::REPLACEMENT_CHARACTER, digits);
    };
    let pair = rest.strip_prefix("\\u").and_then(code_unit);
    match (unit, pair) {
        (0xD800..=0xDBFF, Some((low @ 0xDC00..=0xDFFF, after))) => {
            let scalar = 0x1_0000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
            (char::from_u32(scalar).unwrap_or(char::REPLACEMENT_CHARACTER), after)
        }
        _ => (char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER), rest),
    }
}

fn code_unit(digits: &str) -> Option<(u32, &str)> {
    let (unit, rest) = digits.split_at_checked(4)?;
    let is_hex = unit.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_hex.then(|| u32::from_str_radix(unit, 16).ok().map(|unit| (unit, rest)))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_without_escapes_is_borrowed() {
        assert!(matches!(decode(br#""plain text""#), Cow::Borrowed("plain text")));
    }

    #[test]
    fn lone_surrogates_and_broken_escapes_become_replacement_characters() {
        for (token, text) in [
            (r#""\ud83d\udc4b""#, "👋"),
            (r#""a\ud83d""#, "a\u{fffd}"),
            (r#""\udc4b\ud83d\u0041""#, "\u{fffd}\u{fffd}A"),
            (r#""\ud83d\ud83d\udc4b""#, "\u{fffd}👋"),
            (r#""\u12""#, "\u{fffd}12"),
            (r#""\u+123""#, "\u{fffd}+123"),
            (r#""\uあ""#, "\u{fffd}あ"),
            (r#""\\ud83d""#, "\\ud83d"),
            (r#""\x\/""#, "x/"),
            ("\"\\", "\"\\"),
            ("\"", "\""),
            ("", ""),
        ] {
            assert_eq!(decode(token.as_bytes()), text, "{token}");
        }
        assert_eq!(decode(b"\"\xFF\""), "\u{fffd}");
    }

    #[test]
    fn only_what_must_be_escaped_stays_so() {
        for (json, plain) in [
            (
                r#"{"a":"\u00e9\ud83d\udc4b\u003c\/","b":"\"\\u00e9\n\u001b\u0022\ud800"}"#,
                r#"{"a":"é👋</","b":"\"\\u00e9\n\u001b\u0022\ud800"}"#,
            ),
            (r#"{"a":"é"}"#, r#"{"a":"é"}"#),
            (r#""\uFFFD\u007f""#, "\"\u{fffd}\u{7f}\""),
            ("\"\\", "\"\\"),
        ] {
            assert_eq!(with_few_escapes(json.as_bytes()), plain);
        }
    }

    proptest! {
        #[test]
        fn decoding_undoes_encoding(text in "\\PC*|.*") {
            let token = serde_json::to_vec(&text).unwrap();
            prop_assert_eq!(decode(&token), text);
        }
    }
}
