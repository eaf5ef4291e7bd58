//! JSON as it lies in a payload.
//!
//! Values are found by scanning and never built into a tree: nesting costs no
//! stack, and numbers, strings and keys keep their text. Payloads were checked
//! when they were stored ([`super::payload`]); on anything else the scan ends
//! early and never fails.

use memchr::memchr;
use std::borrow::Cow;
use std::ops::Range;

/// A JSON value in a payload.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Value<'a> {
    source: &'a [u8],
    start: usize,
    end: usize,
}

impl std::fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.bytes()))
    }
}

impl<'a> Value<'a> {
    /// The value that `source` is, with nothing but whitespace around it.
    pub fn of(source: &'a [u8]) -> Self {
        let start = skip_whitespace(source, 0);
        let end = source.iter().rposition(|&byte| !is_whitespace(byte)).map_or(start, |last| last + 1);
        Self { source, start, end }
    }

    /// Its bytes, without whitespace around.
    pub fn bytes(self) -> &'a [u8] {
        self.source.get(self.range()).unwrap_or_default()
    }

    /// Where it lies in the source.
    pub fn range(self) -> Range<usize> {
        self.start..self.end
    }

    /// Whether it is a string.
    pub fn is_string(self) -> bool {
        self.starts_with(b'"')
    }

    /// Whether it is an array.
    pub fn is_array(self) -> bool {
        self.starts_with(b'[')
    }

    /// Whether it is an object.
    pub fn is_object(self) -> bool {
        self.starts_with(b'{')
    }

    /// Whether it is `null`.
    pub fn is_null(self) -> bool {
        self.bytes() == b"null"
    }

    fn starts_with(self, byte: u8) -> bool {
        self.bytes().first() == Some(&byte)
    }

    /// The text of a string. One that stands for no text, because half of a
    /// surrogate pair is missing, is its token, quotes and escapes included.
    pub fn text(self) -> Option<Cow<'a, str>> {
        let inner = self.string_content()?;
        if memchr(b'\\', inner).is_none() {
            return Some(String::from_utf8_lossy(inner));
        }
        let token = self.bytes();
        Some(serde_json::from_slice(token).map_or_else(|_| String::from_utf8_lossy(token), Cow::Owned))
    }

    /// What stands between the quotes of a string.
    pub fn string_content(self) -> Option<&'a [u8]> {
        let token = self.bytes();
        (self.is_string() && token.len() >= 2).then(|| token.get(1..token.len() - 1).unwrap_or_default())
    }

    /// Whether it is a string of nothing but whitespace.
    pub fn is_blank(self) -> bool {
        let Some(inner) = self.string_content() else { return false };
        // Most text shows at its first bytes that it is not blank.
        match inner.iter().find(|byte| !byte.is_ascii_whitespace()) {
            None => true,
            Some(b'!'..=b'[' | b']'..=b'~') => false,
            Some(_) => self.text().is_some_and(|text| text.chars().all(char::is_whitespace)),
        }
    }

    /// Whether it is the string `text`.
    pub fn is_text(self, text: &str) -> bool {
        self.text().is_some_and(|own| own == text)
    }

    /// The elements of an array; none of anything else.
    pub fn elements(self) -> Elements<'a> {
        let at = if self.is_array() { self.start + 1 } else { self.end };
        Elements { source: self.source, at, end: self.end }
    }

    /// The members of an object; none of anything else.
    pub fn members(self) -> Members<'a> {
        let at = if self.is_object() { self.start + 1 } else { self.end };
        Members { source: self.source, at, end: self.end }
    }

    /// The members of those names. Of several with one name the last counts, as
    /// it does for providers.
    pub fn get<const N: usize>(self, names: [&str; N]) -> [Option<Self>; N] {
        let mut found = [None; N];
        for (key, value) in self.members() {
            let key = key.text().unwrap_or_default();
            if let Some((_, slot)) = names.iter().zip(&mut found).find(|(name, _)| **name == key) {
                *slot = Some(value);
            }
        }
        found
    }

    /// The member of that name.
    pub fn member(self, name: &str) -> Option<Self> {
        let [value] = self.get([name]);
        value
    }
}

/// The elements of an array, in order.
#[derive(Clone, Debug)]
pub struct Elements<'a> {
    source: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> Iterator for Elements<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        let start = skip_separators(self.source, self.at);
        let end = end_of_value(self.source, start);
        if start >= end || end >= self.end {
            return None;
        }
        self.at = end;
        Some(Value { source: self.source, start, end })
    }
}

/// The members of an object, in order: key and value.
#[derive(Clone, Debug)]
pub struct Members<'a> {
    source: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> Iterator for Members<'a> {
    type Item = (Value<'a>, Value<'a>);

    fn next(&mut self) -> Option<(Value<'a>, Value<'a>)> {
        let key_start = skip_separators(self.source, self.at);
        if key_start >= self.end || self.source.get(key_start) != Some(&b'"') {
            return None;
        }
        let key_end = end_of_string(self.source, key_start);
        let start = skip_separators(self.source, key_end);
        let end = end_of_value(self.source, start);
        if start >= end || end >= self.end {
            return None;
        }
        self.at = end;
        let key = Value { source: self.source, start: key_start, end: key_end };
        Some((key, Value { source: self.source, start, end }))
    }
}

/// The token of the string `text`, which may be what [`Value::text`] gave for a
/// string that stands for no text.
pub fn string_token(text: &str) -> String {
    let is_token = text.len() >= 2
        && text.starts_with('"')
        && end_of_string(text.as_bytes(), 0) == text.len()
        && Value::of(text.as_bytes()).text().is_some_and(|decoded| decoded == text);
    if is_token { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}

pub(super) fn is_whitespace(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

fn skip_whitespace(source: &[u8], at: usize) -> usize {
    skip_while(source, at, is_whitespace)
}

fn skip_separators(source: &[u8], at: usize) -> usize {
    skip_while(source, at, |byte| is_whitespace(byte) || byte == b',' || byte == b':')
}

fn skip_while(source: &[u8], at: usize, test: impl Fn(u8) -> bool) -> usize {
    let rest = source.get(at..).unwrap_or_default();
    at + rest.iter().position(|&byte| !test(byte)).unwrap_or(rest.len())
}

/// Where the value ends that begins at `at`; `at` if there is none.
pub(super) fn end_of_value(source: &[u8], at: usize) -> usize {
    match source.get(at) {
        Some(b'"') => end_of_string(source, at),
        Some(b'{' | b'[') => end_of_container(source, at),
        _ => skip_while(source, at, |byte| {
            !is_whitespace(byte) && !matches!(byte, b',' | b':' | b']' | b'}' | b'[' | b'{' | b'"')
        }),
    }
}

/// Where the string ends that begins with the quote at `at`.
pub(super) fn end_of_string(source: &[u8], at: usize) -> usize {
    let start = at + 1;
    let mut from = start;
    // From quote to quote: text has several times as many escapes as quotes.
    while let Some(found) = memchr(b'"', source.get(from..).unwrap_or_default()) {
        let quote = from + found;
        let inner = source.get(start..quote).unwrap_or_default();
        from = quote + 1;
        if inner.iter().rev().take_while(|&&byte| byte == b'\\').count() % 2 == 0 {
            return from;
        }
    }
    source.len()
}

/// Where the object or array ends that begins at `at`.
fn end_of_container(source: &[u8], mut at: usize) -> usize {
    let mut depth = 0_usize;
    while let Some(byte) = source.get(at) {
        match byte {
            b'"' => {
                at = end_of_string(source, at);
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth <= 1 => return at + 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
    }
    source.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes<'a>(values: impl Iterator<Item = Value<'a>>) -> Vec<&'a str> {
        values.map(|value| std::str::from_utf8(value.bytes()).unwrap()).collect()
    }

    #[test]
    fn members_and_elements_are_the_tokens_as_they_stand() {
        let source = br#" {"a" : 1.0e+2,"b":[ {"x":"]}\""} ,"\\", [], null ] , "a":{}, "c":"\u00e9" } "#;
        let value = Value::of(source);
        let members: Vec<_> =
            value.members().flat_map(|(key, value)| bytes([key, value].into_iter())).collect();
        let b = r#"[ {"x":"]}\""} ,"\\", [], null ]"#;
        assert_eq!(members, [r#""a""#, "1.0e+2", r#""b""#, b, r#""a""#, "{}", r#""c""#, r#""\u00e9""#]);
        let [a, b, c, none] = value.get(["a", "b", "c", "d"]);
        assert_eq!(a.unwrap().bytes(), b"{}", "of two members with one name the last counts");
        assert_eq!(bytes(b.unwrap().elements()), [r#"{"x":"]}\""}"#, r#""\\""#, "[]", "null"]);
        assert_eq!(c.unwrap().text().unwrap(), "é");
        assert_eq!(none, None);
        assert_eq!(value.elements().count(), 0);
        assert_eq!(b.unwrap().members().count(), 0);
    }

    #[test]
    fn keys_are_compared_as_text() {
        assert!(Value::of(br#"{"r\u006fle":1}"#).member("role").is_some());
        assert!(Value::of(br#"{"role ":1}"#).member("role").is_none());
    }

    #[test]
    fn a_string_that_is_no_text_keeps_its_token() {
        for token in [r#""a\"b""#, r#""\ud800""#, r#""x\udc00y""#, r#""""#, r#""\ud83d\ude00""#] {
            let text = Value::of(token.as_bytes()).text().unwrap();
            let again = string_token(&text);
            assert_eq!(Value::of(again.as_bytes()).text().unwrap(), text, "{token}");
        }
        assert_eq!(string_token(r#""\ud800""#), r#""\ud800""#);
        assert_eq!(string_token(r#""quoted""#), r#""\"quoted\"""#);
    }

    #[test]
    fn blank_strings_are_those_of_whitespace() {
        for blank in [r#""""#, r#"" ""#, r#""\n\t ""#, r#""\u00a0""#, "\"\u{3000}\""] {
            assert!(Value::of(blank.as_bytes()).is_blank(), "{blank}");
        }
        for other in [r#""a""#, r#""\n\n.""#, r#""\u0000""#, r#""\ud800""#, "0", "[]", "\"é\""] {
            assert!(!Value::of(other.as_bytes()).is_blank(), "{other}");
        }
    }

    #[test]
    fn scanning_ends_on_bytes_that_are_no_json() {
        for source in [
            "", "{", "[", "{\"", "{\"a", "{\"a\"", "{\"a\":", "{\"a\":1", "[1,", "[1", "]", "\"\\", "{,}",
            "[:",
        ] {
            let value = Value::of(source.as_bytes());
            assert!(value.members().count() + value.elements().count() <= 1, "{source}");
            let _ = (value.text(), value.is_blank(), value.bytes());
        }
    }

    #[test]
    fn nesting_costs_no_stack() {
        let deep = ["[".repeat(500_000), "]".repeat(500_000)].concat();
        assert_eq!(Value::of(deep.as_bytes()).range(), 0..1_000_000);
    }
}
