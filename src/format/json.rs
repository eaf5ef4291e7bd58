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
    ends: &'a Ends,
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
        static UNKNOWN: Ends = Ends(Vec::new());
        Self::scanned(source, &UNKNOWN)
    }

    /// As [`Self::of`], for a source that was scanned before.
    pub fn scanned(source: &'a [u8], ends: &'a Ends) -> Self {
        let start = skip_whitespace(source, 0);
        let end = source.iter().rposition(|&byte| !is_whitespace(byte)).map_or(start, |last| last + 1);
        Self { source, ends, start, end }
    }

    /// All of the payload that it is in.
    pub fn source(self) -> &'a [u8] {
        self.source
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
        if let Some(text) = self.plain_text() {
            return Some(String::from_utf8_lossy(text));
        }
        let token = self.bytes();
        let decode =
            || serde_json::from_slice(token).map_or_else(|_| String::from_utf8_lossy(token), Cow::Owned);
        self.is_string().then(decode)
    }

    /// The text of a string in which nothing is escaped.
    fn plain_text(self) -> Option<&'a [u8]> {
        self.string_content().filter(|inner| memchr(b'\\', inner).is_none())
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
        match self.plain_text() {
            Some(own) => own == text.as_bytes(),
            None => self.text().is_some_and(|own| own == text),
        }
    }

    /// The elements of an array; none of anything else.
    pub fn elements(self) -> Elements<'a> {
        let at = if self.is_array() { self.start + 1 } else { self.end };
        Elements { source: self.source, ends: self.ends, at, end: self.end }
    }

    /// The members of an object; none of anything else.
    pub fn members(self) -> Members<'a> {
        let at = if self.is_object() { self.start + 1 } else { self.end };
        Members { source: self.source, ends: self.ends, at, end: self.end }
    }

    /// The members of those names. Of several with one name the last counts, as
    /// it does for providers.
    pub fn get<const N: usize>(self, names: [&str; N]) -> [Option<Self>; N] {
        let mut found = [None; N];
        for (key, value) in self.members() {
            // Keys are hardly ever escaped, and need not be text to be compared.
            let key = match key.plain_text() {
                Some(plain) => Cow::Borrowed(plain),
                None => Cow::Owned(key.text().unwrap_or_default().into_owned().into_bytes()),
            };
            let slot = names.iter().zip(&mut found).find(|(name, _)| name.as_bytes() == key.as_ref());
            if let Some((_, slot)) = slot {
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
    ends: &'a Ends,
    at: usize,
    end: usize,
}

impl<'a> Iterator for Elements<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        let start = skip_separators(self.source, self.at);
        let end = self.ends.end_of_value(self.source, start);
        if start >= end || end >= self.end {
            return None;
        }
        self.at = end;
        Some(Value { source: self.source, ends: self.ends, start, end })
    }
}

/// The members of an object, in order: key and value.
#[derive(Clone, Debug)]
pub struct Members<'a> {
    source: &'a [u8],
    ends: &'a Ends,
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
        let end = self.ends.end_of_value(self.source, start);
        if start >= end || end >= self.end {
            return None;
        }
        self.at = end;
        let value = |start, end| Value { source: self.source, ends: self.ends, start, end };
        Some((value(key_start, key_end), value(start, end)))
    }
}

/// Where the long strings, arrays and objects of a payload end. To look through
/// a payload level by level, and that several times, then takes one scan of it.
#[derive(Debug, PartialEq, Eq)]
pub struct Ends(Vec<(usize, usize)>);

impl Ends {
    /// Bytes of a value whose end is worth to be known.
    const LONG: usize = 64;
    /// Levels of arrays and objects of which ends are known: more than any
    /// format looks through.
    const LEVELS: usize = 8;

    /// Scans a payload.
    pub fn of(source: &[u8]) -> Self {
        // Start and end, in the order of the starts.
        let mut long: Vec<(usize, usize)> = Vec::new();
        // The places in `long` of what is open.
        let mut open = [0; Self::LEVELS];
        let mut depth = 0_usize;
        let mut at = 0;
        while let Some(byte) = source.get(at) {
            match byte {
                b'"' => {
                    let end = end_of_string(source, at);
                    if end - at >= Self::LONG {
                        long.push((at, end));
                    }
                    at = end;
                    continue;
                }
                b'{' | b'[' => {
                    if let Some(place) = open.get_mut(depth) {
                        *place = long.len();
                        // One that never ends reaches to the end of all.
                        long.push((at, source.len()));
                    }
                    depth += 1;
                }
                b'}' | b']' if depth > 0 => {
                    depth -= 1;
                    if let Some(place) = open.get(depth) {
                        let is_short = long.get(*place).is_some_and(|(start, _)| at - start < Self::LONG);
                        if is_short {
                            // Nothing in it is longer.
                            long.truncate(*place);
                        } else if let Some((_, end)) = long.get_mut(*place) {
                            *end = at + 1;
                        }
                    }
                }
                _ => {}
            }
            at += 1;
        }
        Self(long)
    }

    fn end_of_value(&self, source: &[u8], at: usize) -> usize {
        match self.0.binary_search_by_key(&at, |(start, _)| *start) {
            Ok(found) => self.0.get(found).map_or(at, |(_, end)| *end),
            Err(_) => end_of_value(source, at),
        }
    }
}

/// The token of the string `text`, which may be what [`Value::text`] gave for a
/// string that stands for no text.
pub fn string_token(text: &str) -> String {
    let inner = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let is_token = inner.is_some_and(|inner| !ends_in_escape(inner.as_bytes()))
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
        if !ends_in_escape(inner) {
            return from;
        }
    }
    source.len()
}

/// Length of a character in a JSON string whose writer escapes all that it may: two for a
/// quote or line break, six for another control character or what Go and Rails keep out
/// of HTML (`<`, `>`, `&`), six or twelve for one outside ASCII.
///
/// The writers of Python, JavaScript, Go, Rust, PHP and Rails give at most this.
/// Those of .NET and Gson escape quotes as six characters unless told otherwise.
pub fn escaped_length(c: char) -> u64 {
    match c {
        '"' | '\\' | '/' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '<' | '>' | '&' => 6,
        ' '..='~' => 1,
        _ => 6 * c.len_utf16() as u64,
    }
}

/// Whether the quote behind these bytes of a string is escaped.
fn ends_in_escape(inner: &[u8]) -> bool {
    inner.iter().rev().take_while(|&&byte| byte == b'\\').count() % 2 == 1
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
    use proptest::prelude::*;

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
        assert_eq!(string_token(r#""\""#), r#""\"\\\"""#);
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
        assert_eq!(Ends::of(deep.as_bytes()).0.len(), Ends::LEVELS);
    }

    #[test]
    fn ends_are_known_of_what_is_long() {
        let text = "x".repeat(Ends::LONG);
        let source = format!(r#"{{"a":["short",{{"b":"{text}\""}},["short"]],"c":[1]}}"#);
        let ends = Ends::of(source.as_bytes());
        let known = ends.0.iter().map(|(start, end)| &source[*start..*end]);
        let (b, inner) = (format!(r#""{text}\"""#), format!(r#"{{"b":"{text}\""}}"#));
        let list = format!(r#"["short",{inner},["short"]]"#);
        assert_eq!(known.collect::<Vec<_>>(), [source.as_str(), &list, &inner, &b]);
    }

    /// All that lies in a value, level by level, as deep as it goes.
    fn places(value: Value<'_>) -> Vec<Range<usize>> {
        let mut places = vec![value.range()];
        let mut todo = vec![value];
        while let Some(value) = todo.pop() {
            let members = value.members().flat_map(|(key, value)| [key, value]);
            let within: Vec<_> = members.chain(value.elements()).collect();
            places.extend(within.iter().map(|value| value.range()));
            todo.extend(within.into_iter().filter(|within| within.range().len() < value.range().len()));
        }
        places
    }

    proptest! {
        #[test]
        fn a_payload_that_was_scanned_looks_the_same(
            tokens in prop::collection::vec(
                prop_oneof![
                    5 => r#"[\[\]{}":, 1\\]"#,
                    2 => r#""[a\[{\]}]{0,90}""#,
                    2 => r"[\[{]{1,12}",
                    2 => r"[\]}]{1,12}",
                    1 => r#""k":"#,
                ],
                0..60,
            ),
        ) {
            let source = tokens.concat();
            let ends = Ends::of(source.as_bytes());
            let scanned = Value::scanned(source.as_bytes(), &ends);
            prop_assert_eq!(places(scanned), places(Value::of(source.as_bytes())));
        }
    }
}
