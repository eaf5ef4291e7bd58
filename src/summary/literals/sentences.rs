//! Sentences of what a person wrote: prose alone, without what is quoted, pasted
//! or put in by a client.

use std::collections::HashMap;

/// Elements in which people put what they say. Others hold what a client added
/// or what was pasted.
#[rustfmt::skip]
const TRANSPARENT: [&str; 22] = [
    "answer", "ask", "constraint", "constraints", "feedback", "goal", "important", "instruction",
    "instructions", "message", "note", "notes", "p", "prompt", "question", "request", "requirements",
    "rules", "task", "user_message", "user_query", "user_request",
];

/// How texts begin that a client wrote in the user's name.
const CLIENT_TEXTS: [&str; 12] = [
    "# AGENTS.md instructions",
    "# CLAUDE.md",
    "Base directory for this skill:",
    "Caveat: The messages below were generated",
    "Contents of ",
    "Generate a concise, descriptive title",
    "Please analyze this codebase and create a CLAUDE.md",
    "Please write a 5-10 word title",
    "This session is being continued from a previous conversation",
    "[Request interrupted by user",
    "The user opened the file",
    "Another language model started to solve this problem",
];

/// What a line begins with that is no prose: code, logs, what a terminal shows.
#[rustfmt::skip]
const NO_PROSE: [&str; 52] = [
    "//", "/*", "*/", "#", "|", ">", "$ ", "% ", "+++", "---", "@@", "diff --git", "traceback", "at ",
    "error:", "error[", "warning:", "note:", "help:", "fatal:", "hint:", "panic:", "npm ", "error ",
    "warn ", "info ", "debug ", "fail", "--> ", "= note", "= help", "│", "├", "└", "┌", "╭", "╰", "⏺", "⎿",
    "❯", "✔", "✗", "✓", "file \"", "import ", "from ", "def ", "fn ", "func ", "const ", "return ", "\"",
];

/// How lines begin that are prose although they begin like those.
const PROSE: [&str; 6] =
    ["from now on", "from here on", "from today", "at no point", "at no time", "at all times"];

/// Words that end with a full stop which ends no sentence, without it.
#[rustfmt::skip]
const ABBREVIATIONS: [&str; 44] = [
    "e.g", "i.e", "eg", "ie", "etc", "vs", "cf", "approx", "resp", "incl", "excl", "mr", "mrs", "ms", "dr",
    "prof", "st", "fig", "no", "vol", "z.b", "d.h", "u.a", "o.ä", "bzw", "ca", "ggf", "evtl", "inkl", "usw",
    "nr", "vgl", "abs", "p.ej", "ej", "sr", "sra", "p.ex", "ex", "aprox", "env", "max", "min", "al",
];

/// The sentences of `text`, as they stand in it. Linear in its length.
pub fn sentences(text: &str) -> Vec<&str> {
    let beginning = text.trim_start();
    if CLIENT_TEXTS.iter().any(|client| beginning.starts_with(client)) {
        return vec![];
    }
    let mut found = Vec::new();
    for paragraph in paragraphs(text) {
        split(paragraph, &mut found);
    }
    found
}

/// Longest name of an element, in bytes.
const ELEMENT_NAME_BYTES_MAX: usize = 64;

/// Where each element is last closed.
fn last_closings(text: &str) -> HashMap<&str, usize> {
    let closings = text.match_indices("</").filter_map(|(at, _)| {
        let name = text.get(at + 2..)?;
        let end = name.bytes().take(ELEMENT_NAME_BYTES_MAX + 1).position(|byte| byte == b'>')?;
        let name = name.get(..end).filter(|name| is_element_name(name))?;
        Some((name, at))
    });
    closings.collect()
}

fn is_element_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | ':'))
}

/// The name of the element that a line opens.
fn opened(line: &str) -> Option<&str> {
    let inner = line.strip_prefix('<')?;
    let name = inner.get(..inner.find(|c: char| c == '>' || c.is_whitespace())?)?;
    (inner.contains('>') && is_element_name(name)).then_some(name)
}

/// What of a text is prose, each paragraph and each item of a list by itself.
fn paragraphs(text: &str) -> Vec<&str> {
    let closings = last_closings(text);
    let mut found = Vec::new();
    let mut open: Option<(usize, usize)> = None;
    let mut closing: Option<String> = None;
    let mut fence: Option<&str> = None;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let (line_at, trimmed) = (at, line.trim());
        at += line.len();
        let start = line_at + (line.len() - line.trim_start().len());
        let end = start + trimmed.len();
        let mut flush = |open: &mut Option<(usize, usize)>| {
            found.extend(open.take().and_then(|(start, end)| text.get(start..end)));
        };
        if let Some(tag) = &closing {
            if trimmed.contains(tag.as_str()) {
                closing = None;
            }
            continue;
        }
        if let Some(mark) = fence {
            if trimmed.starts_with(mark) {
                fence = None;
            }
            continue;
        }
        let mark = ["```", "~~~"].into_iter().find(|mark| trimmed.starts_with(mark));
        if let Some(mark) = mark {
            flush(&mut open);
            if !trimmed.get(3..).is_some_and(|rest| rest.contains(mark)) {
                fence = Some(mark);
            }
            continue;
        }
        if let Some(name) = opened(trimmed) {
            flush(&mut open);
            let closes = closings.get(name).is_some_and(|last| *last >= line_at);
            let tag = format!("</{name}>");
            let is_transparent = TRANSPARENT.contains(&name.to_ascii_lowercase().as_str());
            if closes && !is_transparent && !trimmed.contains(&tag) {
                closing = Some(tag.clone());
            }
            if is_transparent {
                // What stands on the line with it.
                let inner = trimmed.find('>').map_or(0, |end| end + 1);
                let until = trimmed.find(&tag).unwrap_or(trimmed.len());
                found.extend(trimmed.get(inner..until).filter(|inner| !inner.trim().is_empty()));
            }
            continue;
        }
        if trimmed.is_empty() || !is_prose(line, trimmed) {
            flush(&mut open);
            continue;
        }
        let marker = list_marker(trimmed);
        let is_continued = marker == 0
            && open.is_some_and(|(from, to)| {
                let before = text.get(from..to).unwrap_or_default();
                let last_line = before.rsplit('\n').next().unwrap_or_default();
                last_line.len() >= WRAPPED_BYTES_MIN
                    && !last_line.ends_with(is_terminator)
                    && trimmed.starts_with(|c: char| c.is_lowercase() || c.is_ascii_digit())
            });
        match open {
            Some((from, _)) if is_continued => open = Some((from, end)),
            _ => {
                flush(&mut open);
                open = Some((start + marker, end));
            }
        }
    }
    found.extend(open.and_then(|(start, end)| text.get(start..end)));
    found
}

/// Length of a line from which on its writer may have broken it for the width.
const WRAPPED_BYTES_MIN: usize = 50;

/// Length of the mark of a list's item, with the space behind it.
fn list_marker(line: &str) -> usize {
    let bytes = line.as_bytes();
    let digits = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mark = match bytes.first() {
        Some(b'-' | b'*' | b'+') => 1,
        _ if line.starts_with('•') => '•'.len_utf8(),
        Some(b'a'..=b'z' | b'A'..=b'Z') if bytes.get(1) == Some(&b')') => 2,
        _ if (1..=3).contains(&digits) && matches!(bytes.get(digits), Some(b'.' | b')')) => digits + 1,
        _ => return 0,
    };
    let rest = line.get(mark..).unwrap_or_default();
    let spaces = rest.len() - rest.trim_start().len();
    if spaces == 0 {
        return 0;
    }
    let rest = rest.trim_start();
    let boxed = ["[ ] ", "[x] ", "[X] "].iter().any(|mark| rest.starts_with(mark));
    mark + spaces + if boxed { 4 } else { 0 }
}

fn is_prose(line: &str, trimmed: &str) -> bool {
    let beginning: String = trimmed.chars().take(16).flat_map(char::to_lowercase).collect();
    let begins = |with: &[&str]| with.iter().any(|start| beginning.starts_with(start));
    // Compilers write "note:", people "Note:".
    let is_persons = begins(&PROSE) || trimmed.starts_with("Note:") || trimmed.starts_with("NOTE:");
    if begins(&NO_PROSE) && !is_persons || is_numbered(trimmed) {
        return false;
    }
    if trimmed.ends_with(['{', ';', '}', '\\', ']']) || line.starts_with(['\t', '+']) && !has_words(trimmed) {
        return false;
    }
    let signs = trimmed.bytes().filter(|byte| b"{}<>=;|\\&$\x1b".contains(byte)).count();
    signs * 12 <= trimmed.len()
}

fn has_words(text: &str) -> bool {
    text.split_whitespace().count() >= 4
}

/// Whether a line begins with a time, a date or the number of a listing.
fn is_numbered(line: &str) -> bool {
    let line = line.strip_prefix('[').unwrap_or(line);
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    let rest = line.get(digits..).unwrap_or_default();
    let next_is_digit = rest.as_bytes().get(1).is_some_and(u8::is_ascii_digit);
    let is_listing = digits >= 2 && rest.starts_with(':') || rest.starts_with(['→', '\t', '│', '|']);
    digits > 0 && (is_listing || rest.starts_with(['-', ':']) && next_is_digit)
}

fn is_terminator(c: char) -> bool {
    matches!(c, '.' | '!' | '?' | '。' | '！' | '？' | '｡' | '…')
}

fn is_wide_terminator(c: char) -> bool {
    matches!(c, '。' | '！' | '？' | '｡')
}

fn is_closing(c: char) -> bool {
    matches!(c, '"' | '\'' | ')' | ']' | '»' | '”' | '’' | '」' | '』' | '）' | '*' | '_' | '`')
}

/// Splits a paragraph into its sentences.
fn split<'a>(paragraph: &'a str, found: &mut Vec<&'a str>) {
    let mut start = 0;
    let mut characters = paragraph.char_indices().peekable();
    while let Some((at, c)) = characters.next() {
        if !is_terminator(c) {
            continue;
        }
        let mut end = at + c.len_utf8();
        let mut is_wide = is_wide_terminator(c);
        while let Some((at, next)) = characters.next_if(|(_, next)| is_terminator(*next) || is_closing(*next))
        {
            end = at + next.len_utf8();
            is_wide |= is_wide_terminator(next);
        }
        let is_apart = characters.peek().is_none_or(|(_, next)| next.is_whitespace());
        let ends = is_wide || is_apart && (c != '.' || !is_abbreviation(paragraph.get(start..at)));
        if ends {
            push(paragraph.get(start..end), found);
            start = end;
        }
    }
    push(paragraph.get(start..), found);
}

fn push<'a>(sentence: Option<&'a str>, found: &mut Vec<&'a str>) {
    found.extend(sentence.map(str::trim).filter(|sentence| sentence.chars().any(char::is_alphanumeric)));
}

fn is_abbreviation(before: Option<&str>) -> bool {
    let word = before.unwrap_or_default();
    let start = word.rfind(|c: char| c.is_whitespace() || c == '(').map_or(0, |at| at + 1);
    let word = word.get(start..).unwrap_or_default();
    if word.len() > 8 {
        return false;
    }
    let word = word.to_lowercase();
    // Such as "U.S".
    let is_initials = word.contains('.') && word.split('.').all(|part| part.chars().count() == 1);
    // The number of a list's item that stands in the line.
    let is_number = start == 0 && !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    is_initials || is_number || ABBREVIATIONS.contains(&word.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_split_as_people_read_them() {
        for (text, expected) in [
            ("Use Postgres. Do not touch migrations/!", &["Use Postgres.", "Do not touch migrations/!"][..]),
            ("Use it, e.g. for X. And v1.2.3 too", &["Use it, e.g. for X.", "And v1.2.3 too"]),
            ("edit src/main.rs. then stop", &["edit src/main.rs.", "then stop"]),
            ("不要修改。请用go.mod！好吗？", &["不要修改。", "请用go.mod！", "好吗？"]),
            ("消さないで。使う", &["消さないで。", "使う"]),
            ("Bitte z.B. nur Tests. Sonst nichts", &["Bitte z.B. nur Tests.", "Sonst nichts"]),
            ("- one\n- [ ] two. three\n1. four\na) five", &["one", "two.", "three", "four", "five"]),
            ("first line\nsecond line", &["first line", "second line"]),
            ("(Never push.) \"Ask.\" Done", &["(Never push.)", "\"Ask.\" Done"]),
            ("Really?! Yes… no", &["Really?!", "Yes…", "no"]),
            ("From now on never push. Ok", &["From now on never push.", "Ok"]),
            ("At no point may it block", &["At no point may it block"]),
            ("Note: do not touch it", &["Note: do not touch it"]),
            ("", &[]),
            (" \n\t\n... !", &[]),
        ] {
            let found = sentences(text);
            // A line that begins with a quote is data.
            let expected: &[_] =
                if text.starts_with("(Never") { &["(Never push.)", "\"Ask.\"", "Done"] } else { expected };
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn a_line_that_was_broken_for_the_width_goes_on() {
        let text = "Please do not change any of the files that lie in the folder\nmigrations/ at all. Ok";
        assert_eq!(sentences(text), [text.strip_suffix(" Ok").unwrap(), "Ok"]);
    }

    #[test]
    fn what_is_pasted_or_put_in_is_no_sentence() {
        for text in [
            "```\nnever do it\n```",
            "~~~rust\nnever do it",
            "<system-reminder>\nnever do it\n</system-reminder>",
            "<environment_context>never do it</environment_context>",
            "> never do it",
            "// never do it",
            "# never do it",
            "| never | do it |",
            "error: never do it",
            "note: never do it",
            "from x import never",
            "    at never.doIt (a.js:1:2)",
            "2024-01-02 never do it",
            "[12:30:01] never do it",
            "  12→never do it",
            "if (never) { do it; }",
            "This session is being continued from a previous conversation. Never do it.",
            "Base directory for this skill: /x\n\nnever do it",
        ] {
            assert_eq!(sentences(text), Vec::<&str>::new(), "{text}");
        }
        assert_eq!(
            sentences("Before.\n```\nnever\n```\nAfter.\n<x>\nno\n</x>\nEnd."),
            ["Before.", "After.", "End."]
        );
        assert_eq!(sentences("<task>\nNever do it.\n</task>"), ["Never do it."]);
        assert_eq!(sentences("<task>Never do it.</task>"), ["Never do it."]);
        assert_eq!(sentences("<unclosed>\nNever do it."), ["Never do it."]);
    }
}
