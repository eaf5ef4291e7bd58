//! Importing foreign transcripts, and exporting them again.
//!
//! Three kinds of input: small samples of our own in `data/import`, each with
//! what is expected of it beside it; recorded transcripts, found through
//! `TURNKEEP_TRANSCRIPTS`; and arbitrary bytes.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "import_transcripts/arbitrary.rs"]
mod arbitrary;
#[path = "import_transcripts/recorded.rs"]
mod recorded;
#[path = "support/recorded.rs"]
mod transcripts;

use bytes::Bytes;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use turnkeep::export;
use turnkeep::import::{Import, ImportError, ImportedEntry, Options, Source, Thread, detect, import};
use turnkeep::limits::{ENTRY_BYTES_MAX, TURN_ENTRIES_MAX};
use turnkeep::model::EntryKind;

const PLAIN: Options = Options { verbatim: false };
const VERBATIM: Options = Options { verbatim: true };

fn samples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/import")
}

fn sample(name: &str) -> Bytes {
    Bytes::from(fs::read(samples().join(name)).unwrap())
}

/// All files under a folder, in the order of their names.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(self::files(&path));
        } else {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn entries(thread: &Thread) -> impl Iterator<Item = &ImportedEntry> {
    thread.turns.iter().flat_map(|turn| &turn.entries)
}

fn messages(thread: &Thread) -> Vec<&[u8]> {
    entries(thread).filter(|entry| entry.kind == EntryKind::Message).map(|entry| &entry.payload[..]).collect()
}

fn one_line(payload: &[u8]) -> String {
    std::str::from_utf8(payload).unwrap().replace('\n', "⏎")
}

/// An import as text, to be compared as a whole.
fn render(import: &Import) -> String {
    let mut text = format!("source {}\n", import.source);
    for (what, times) in &import.stripped {
        writeln!(text, "stripped {what} x{times}").unwrap();
    }
    for warning in &import.warnings {
        writeln!(text, "line {}: {} x{}", warning.line, warning.message, warning.times).unwrap();
    }
    for (index, thread) in import.threads.iter().enumerate() {
        writeln!(text, "\nthread {index} {} {:?}", thread.format, thread.id_hint).unwrap();
        if let Some(parent) = &thread.parent {
            writeln!(text, "parent {:?} {:?} {:?}", parent.thread, parent.call_id, parent.seq).unwrap();
        }
        if let Some(preamble) = &thread.preamble {
            writeln!(text, "preamble {}", one_line(preamble)).unwrap();
        }
        for turn in &thread.turns {
            text.push_str("turn");
            if let Some(usage) = &turn.usage {
                let [input, output] = [usage.input_tokens, usage.output_tokens];
                let [read, write] = [usage.cache_read_tokens, usage.cache_write_tokens];
                write!(text, " {:?} in {input} out {output} read {read} written {write}", usage.model)
                    .unwrap();
            }
            text.push('\n');
            for entry in &turn.entries {
                let kind = if entry.kind == EntryKind::Message { "message" } else { "record" };
                let at = entry.at.map_or(String::new(), |at| format!(" {}", at.0));
                writeln!(text, "  {kind} {}{at} {}", entry.line, one_line(&entry.payload)).unwrap();
            }
        }
    }
    text
}

#[test]
fn each_sample_is_imported_as_is_expected() {
    let mut wrong = Vec::new();
    let is_sample = |path: &PathBuf| {
        path.extension().is_none_or(|extension| extension != "expected") && !path.ends_with(".gitattributes")
    };
    let all: Vec<_> = files(&samples()).into_iter().filter(is_sample).collect();
    assert!(all.len() > 20, "the samples are there");
    for path in all {
        let found = render(&import(&Bytes::from(fs::read(&path).unwrap()), None, PLAIN).unwrap());
        let expected = PathBuf::from(format!("{}.expected", path.display()));
        if fs::read_to_string(&expected).unwrap_or_default() != found {
            if std::env::var_os("TURNKEEP_UPDATE_EXPECTED").is_some() {
                fs::write(&expected, &found).unwrap();
            }
            wrong.push(format!("--- {}\n{found}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "TURNKEEP_UPDATE_EXPECTED=1 writes them\n{}", wrong.join("\n"));
}

/// What must hold for every import, of any bytes.
fn check_rules(bytes: &Bytes, source: Option<Source>) {
    let found = match import(bytes, source, VERBATIM) {
        Ok(found) => found,
        Err(ImportError::NotOfSource(refused)) => return assert_eq!(source, Some(refused)),
        Err(ImportError::CutOff { .. }) => {
            assert_ne!(source, Some(Source::Text), "any file can be taken as text");
            serde_json::from_slice::<&serde_json::value::RawValue>(bytes).unwrap_err();
            return;
        }
    };
    assert_eq!(found.source, source.unwrap_or_else(|| detect(bytes)));
    assert!(!found.threads.is_empty());
    for thread in &found.threads {
        for turn in &thread.turns {
            assert!(turn.entries.len() <= TURN_ENTRIES_MAX);
            assert!(turn.entries.iter().map(|entry| entry.payload.len()).sum::<usize>() <= ENTRY_BYTES_MAX);
        }
        for entry in entries(thread) {
            let payload = std::str::from_utf8(&entry.payload).unwrap();
            assert!(payload.starts_with('{'), "a payload is an object: {payload}");
            serde_json::from_str::<&serde_json::value::RawValue>(payload).unwrap();
        }
    }
    // The log as a whole gives the file back, and without the records of the
    // file it is what a plain import gives.
    let payloads = entries(&found.threads[0]).map(|entry| &entry.payload[..]);
    assert_eq!(export::verbatim(payloads).as_deref(), Ok(&bytes[..]));
    let plain = import(bytes, source, PLAIN).unwrap();
    assert_eq!((&plain.stripped, &plain.warnings), (&found.stripped, &found.warnings));
    assert_eq!(plain.threads.len(), found.threads.len());
    let is_of_file = |entry: &&ImportedEntry| entry.payload.starts_with(b"{\"turnkeep_verbatim\":");
    for (plain, found) in plain.threads.iter().zip(&found.threads) {
        let found: Vec<_> = entries(found).filter(|entry| !is_of_file(entry)).collect();
        assert_eq!(entries(plain).collect::<Vec<_>>(), found);
        assert!(plain.turns.iter().all(|turn| !turn.entries.is_empty()));
    }
}

#[test]
fn each_sample_keeps_to_the_rules_whatever_it_is_taken_for() {
    for path in files(&samples()) {
        let bytes = Bytes::from(fs::read(&path).unwrap());
        for source in [None].into_iter().chain(Source::ALL.map(Some)) {
            check_rules(&bytes, source);
        }
    }
}

#[test]
fn a_source_that_the_file_is_not_of_is_refused() {
    let refused = |name: &str| {
        let bytes = sample(name);
        let is_refused =
            |source: &Source| import(&bytes, Some(*source), PLAIN) == Err(ImportError::NotOfSource(*source));
        Source::ALL.into_iter().filter(is_refused).map(Source::as_str).collect::<Vec<_>>()
    };
    let messages = ["openai-chat", "openai-responses", "anthropic", "gemini", "bedrock"];
    assert_eq!(
        refused("text/events.sse.txt"),
        [&["claude-code", "codex"], &messages[..], &["json"]].concat()
    );
    assert_eq!(refused("claude-code/grouping.jsonl"), [&["codex"], &messages[..]].concat());
    assert_eq!(refused("openai-chat/messages.jsonl"), ["claude-code", "codex", "gemini"]);
}

#[test]
fn a_document_that_is_cut_off_is_refused_and_a_torn_line_is_not() {
    let whole = sample("anthropic/messages.json");
    let cut = whole.slice(..whole.len() - 20);
    let compact = Bytes::from_static(br#"{"messages":[{"role":"user","content":"hi"},"#);
    for (bytes, source) in [
        (&cut, None),
        (&cut, Some(Source::Anthropic)),
        (&compact, None),
        (&compact, Some(Source::OpenaiChat)),
    ] {
        let error = import(bytes, source, PLAIN).unwrap_err();
        let ImportError::CutOff { begins: 1, line, .. } = error else { panic!("{error:?}") };
        assert_eq!(line, bytes.split(|byte| *byte == b'\n').count() as u64);
        assert!(error.to_string().contains("--source text"), "{error}");
        assert_eq!(import(bytes, Some(Source::Text), PLAIN).unwrap().source, Source::Text);
    }
    let torn = sample("claude-code/torn-tail.jsonl");
    assert_eq!(import(&torn, None, PLAIN).unwrap().source, Source::ClaudeCode);
}

#[test]
fn messages_that_look_like_another_api_s_are_told() {
    let bytes = sample("anthropic/messages.json");
    let warnings = |source| import(&bytes, Some(source), PLAIN).unwrap().warnings;
    assert_eq!(warnings(Source::Anthropic), []);
    let told: Vec<_> = warnings(Source::OpenaiChat).into_iter().map(|warning| warning.message).collect();
    assert_eq!(told, ["looks like --source anthropic"]);
}

#[test]
fn a_source_that_is_given_decides_what_text_alone_leaves_open() {
    let bytes = Bytes::from_static(br#"[{"role":"user","content":"hi"}]"#);
    for source in [Source::OpenaiChat, Source::Anthropic, Source::OpenaiResponses, Source::Bedrock] {
        let found = import(&bytes, Some(source), PLAIN).unwrap();
        assert_eq!(
            (found.source, messages(&found.threads[0])),
            (source, vec![&br#"{"role":"user","content":"hi"}"#[..]])
        );
    }
}

#[test]
fn names_of_sources_round_trip() {
    for source in Source::ALL {
        assert_eq!(Source::from_name(&source.to_string()), Some(source));
    }
    assert_eq!(Source::from_name("no-such"), None);
}

#[test]
fn what_is_exported_as_json_is_imported_as_the_same_messages() {
    for (name, source) in [
        ("openai-chat/request-and-response.json", None),
        ("openai-responses/items-and-response.json", None),
        ("anthropic/messages.json", None),
        ("gemini/request.json", None),
        ("bedrock/converse.json", None),
        ("claude-code/grouping.jsonl", None),
        // With an item that this version does not know.
        ("codex/rollout.jsonl", Some(Source::OpenaiResponses)),
    ] {
        let found = import(&sample(name), None, PLAIN).unwrap();
        let messages = messages(&found.threads[0]);
        for layout in [export::Layout::JsonLines, export::Layout::JsonArray] {
            let file = Bytes::from(export::plain(messages.iter().copied(), layout));
            let again = import(&file, source, PLAIN).unwrap();
            assert_eq!(again.threads.len(), 1, "{name}");
            assert_eq!(again.threads[0].format, found.threads[0].format, "{name}");
            assert_eq!(self::messages(&again.threads[0]), messages, "{name} {layout:?}");
        }
    }
}

#[test]
fn a_file_that_was_not_kept_is_not_exported() {
    let found = import(&sample("claude-code/grouping.jsonl"), None, PLAIN).unwrap();
    let payloads = entries(&found.threads[0]).map(|entry| &entry.payload[..]);
    assert_eq!(export::verbatim(payloads), Err(export::ExportError::NotVerbatim));
}

#[test]
fn turns_and_entries_keep_to_the_limits() {
    // Bytes of which each becomes six in a record.
    check_rules(&Bytes::from(vec![1; 9 * 1024 * 1024]), None);
    // More lines about one step than a turn may have.
    let progress = r#"{"type":"progress","uuid":"u","sessionId":"s","data":{"type":"x"}}"#;
    let lines = format!("{}\n", [progress].repeat(TURN_ENTRIES_MAX + 1).join("\n"));
    check_rules(&Bytes::from([&sample("claude-code/grouping.jsonl")[..], lines.as_bytes()].concat()), None);
}

#[test]
fn a_message_that_is_too_large_for_an_entry_is_kept_in_records() {
    let message = format!(r#"{{"role":"user","content":"{}"}}"#, "é".repeat(ENTRY_BYTES_MAX / 2));
    let file = Bytes::from(format!("{{\"role\":\"user\",\"content\":\"hi\"}}\n{message}\n"));
    check_rules(&file, None);
    let found = import(&file, None, PLAIN).unwrap();
    let records: Vec<_> = entries(&found.threads[0]).filter(|entry| entry.kind == EntryKind::Meta).collect();
    let text = |entry: &&ImportedEntry| {
        let record: serde_json::Value = serde_json::from_slice(&entry.payload).unwrap();
        record["turnkeep_oversized"]["text"].as_str().unwrap().to_owned()
    };
    assert!(records.iter().map(text).collect::<String>() == message);
    assert_eq!(found.warnings.len(), 1);
    assert_eq!(found.warnings[0].line, 2);
}
