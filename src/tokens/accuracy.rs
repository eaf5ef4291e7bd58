//! How counts compare with what providers reported for recorded sessions.

use super::TokenCounter;
use crate::format::reading::{Call, CallResult, Part, Reading, Role};
use crate::model::{Tokenizer, WireFormat};
use serde_json::Value;
use std::borrow::Cow;
use std::path::PathBuf;

/// Where the recordings are, unless they are not there and need not be.
fn transcripts() -> Option<PathBuf> {
    let folder = std::env::var_os("TURNKEEP_TRANSCRIPTS").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/transcripts"),
        PathBuf::from,
    );
    if folder.is_dir() {
        return Some(folder);
    }
    let required = std::env::var("TURNKEEP_REQUIRE_TRANSCRIPTS").is_ok_and(|value| value == "1");
    assert!(!required, "no transcripts at {}", folder.display());
    eprintln!("skipped: no transcripts at {}", folder.display());
    None
}

/// The values of a recording's lines; some lines hold two.
fn values(path: &str) -> Option<Vec<Value>> {
    let text = std::fs::read_to_string(transcripts()?.join(path)).unwrap();
    let lines = text.lines();
    Some(lines.flat_map(|line| serde_json::Deserializer::from_str(line).into_iter()).flatten().collect())
}

/// Texts, calls and results that were counted together, and their tokens as the
/// provider reported them.
#[derive(Default)]
struct Sample {
    calls: Vec<(String, String)>,
    texts: Vec<String>,
    results: usize,
    reported: i64,
}

impl Sample {
    fn counted(&self, counter: TokenCounter) -> i64 {
        let json = |text: &String| serde_json::to_vec(text).unwrap();
        let calls = |(name, _): &(String, String)| Call {
            id: None,
            name: Cow::Owned(name.clone()),
            kind: Cow::Borrowed(""),
            index: 0,
        };
        let result = CallResult { id: None, name: Cow::Borrowed(""), kind: Cow::Borrowed(""), index: 0 };
        let texts: Vec<_> = self.texts.iter().map(json).collect();
        let texts = texts.iter().map(|text| Part::Text(text));
        let arguments = self.calls.iter().map(|(_, arguments)| Part::Json(arguments.as_bytes()));
        let reading = Reading {
            calls: self.calls.iter().map(calls).collect(),
            results: vec![result; self.results],
            parts: texts.chain(arguments).collect(),
            ..Reading::new(Role::Unknown)
        };
        counter.count_entry(&reading).cast_signed()
    }
}

fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The `percent`th percentile.
fn percentile(values: &[i64], percent: usize) -> i64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted[(sorted.len() - 1) * percent / 100]
}

/// A request of Claude Code: what it reports, what the answer says and what
/// follows it.
#[derive(Default)]
struct Request {
    id: String,
    input: i64,
    output: i64,
    is_final: bool,
    has_hidden: bool,
    has_foreign: bool,
    answer: Sample,
    added: Sample,
}

/// The requests of a session's main thread.
fn requests(lines: &[Value]) -> Vec<Request> {
    let mut requests: Vec<Request> = Vec::new();
    for line in lines.iter().filter(|line| line["isSidechain"] != Value::Bool(true)) {
        let message = &line["message"];
        let blocks = message["content"].as_array().map_or(&[][..], Vec::as_slice);
        if line["type"] == "assistant" {
            let id = text_of(&message["id"]);
            let at = requests.iter().position(|request| request.id == id);
            let at = at.unwrap_or_else(|| {
                requests.push(Request { id, ..Request::default() });
                requests.len() - 1
            });
            read_answer(&mut requests[at], message, blocks);
        } else if let Some(request) = requests.last_mut() {
            request.has_foreign |= line["type"] == "attachment" || line["type"] == "system";
            request.added.texts.extend(message["content"].as_str().map(str::to_owned));
            for block in blocks {
                read_added(request, block);
            }
        }
    }
    requests
}

fn read_answer(request: &mut Request, message: &Value, blocks: &[Value]) {
    let usage = &message["usage"];
    let kinds = ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"];
    request.input = kinds.iter().filter_map(|kind| usage[kind].as_i64()).sum();
    request.output = usage["output_tokens"].as_i64().unwrap_or_default();
    request.is_final = message["stop_reason"].is_string();
    for block in blocks {
        match block["type"].as_str() {
            Some("text") => request.answer.texts.push(text_of(&block["text"])),
            Some("tool_use") => {
                request.answer.calls.push((text_of(&block["name"]), block["input"].to_string()));
            }
            _ => request.has_hidden = true,
        }
    }
}

fn read_added(request: &mut Request, block: &Value) {
    let content = &block["content"];
    match block["type"].as_str() {
        Some("text") => request.added.texts.push(text_of(&block["text"])),
        Some("tool_result") => {
            request.added.results += 1;
            request.added.texts.extend(content.as_str().map(str::to_owned));
            for part in content.as_array().into_iter().flatten() {
                request.has_foreign |= part["type"] != "text";
                request.added.texts.push(text_of(&part["text"]));
            }
        }
        _ => request.has_foreign = true,
    }
}

/// What Claude reported for answers without thinking, and for what came between
/// two requests with nothing in it that the recording does not show.
fn claude_samples(file: &str) -> Option<Vec<Sample>> {
    let mut samples = Vec::new();
    let mut requests = requests(&values(file)?).into_iter().peekable();
    while let Some(mut request) = requests.next() {
        if !request.is_final {
            continue;
        }
        if let Some(next) = requests.peek().filter(|_| !request.has_foreign) {
            request.added.reported = next.input - request.input - request.output;
            samples.push(request.added);
        }
        if !request.has_hidden {
            request.answer.reported = request.output;
            samples.push(request.answer);
        }
    }
    samples.retain(|sample| sample.reported > 300);
    Some(samples)
}

#[test]
fn estimates_for_claude_err_upward_against_reported_usage() {
    let counter = TokenCounter::new(WireFormat::AnthropicMessages, Tokenizer::Estimate);
    let files = [
        "claude-code/gitsync-1792c3da-planmode-ide.jsonl",
        "claude-code/gitsync-62a34811-api-error.jsonl",
        "claude-code/gitsync-68029492-orphan-use.jsonl",
        "claude-code/flutter-9edc9e71-2.1.22x.jsonl",
        "claude-code/flutter-f38c62f6-2.1.23x.jsonl",
        "claude-code-stripped/gitsync-01KXDM08-full.jsonl",
    ];
    let Some(samples) = files.into_iter().map(claude_samples).collect::<Option<Vec<_>>>() else { return };
    let samples: Vec<_> = samples.into_iter().flatten().collect();
    let percents: Vec<_> =
        samples.iter().map(|sample| sample.counted(counter) * 100 / sample.reported).collect();
    let [low, median, high] = [10, 50, 90].map(|percent| percentile(&percents, percent));
    println!("{} samples, percent of what was reported: {low} {median} {high}", samples.len());
    assert!(40 <= samples.len() && 97 <= low && (100..115).contains(&median) && high <= 130);
}

#[test]
fn counts_for_gpt_are_what_it_reported() {
    let counter = TokenCounter::new(WireFormat::OpenaiResponses, Tokenizer::O200k);
    let Some(lines) = values("codex-rollout/gitsync-019d6d29-longest.jsonl") else { return };
    let mut errors = Vec::new();
    let mut sample = Sample::default();
    let mut last: Option<(i64, i64)> = None;
    for line in lines {
        let payload = &line["payload"];
        match payload["type"].as_str() {
            Some("function_call_output" | "custom_tool_call_output") if payload["output"].is_string() => {
                sample.results += 1;
                sample.texts.push(text_of(&payload["output"]));
            }
            Some("function_call" | "custom_tool_call" | "reasoning") => {}
            Some("message") if payload["role"] == "assistant" => {}
            Some("token_count") => {
                let usage = &payload["info"]["last_token_usage"];
                let Some(now) = usage["input_tokens"].as_i64().zip(usage["output_tokens"].as_i64()) else {
                    continue;
                };
                if last != Some(now) {
                    if let Some((input, output)) = last.filter(|_| sample.results == 1) {
                        errors.push(sample.counted(counter) - (now.0 - input - output));
                    }
                    last = Some(now);
                    sample = Sample::default();
                }
            }
            _ if line["type"] == "event_msg" => {}
            _ => last = None,
        }
    }
    let [low, median, high] = [10, 50, 90].map(|percent| percentile(&errors, percent));
    println!("{} results, counted - reported: {low} {median} {high}", errors.len());
    assert!(100 <= errors.len() && -2 <= low && high <= 6);
}

#[test]
fn estimates_of_recorded_text_exceed_o200k_as_stated() {
    let [o200k, claude, gemini] = [
        (WireFormat::OpenaiChat, Tokenizer::O200k),
        (WireFormat::AnthropicMessages, Tokenizer::Estimate),
        (WireFormat::GeminiContents, Tokenizer::Estimate),
    ]
    .map(|(format, tokenizer)| TokenCounter::new(format, tokenizer));
    for (file, kind) in [
        ("codex-rollout/mise-019f53ae-bigoutput126k.jsonl", "logs"),
        ("codex-rollout/mise-019f6b70-ansi.jsonl", "terminal output"),
        ("claude-code/cli-170cebcc-fffd.jsonl", "code"),
        ("claude-code/vct-claude-zh.jsonl", "Chinese"),
    ] {
        let Some(lines) = values(file) else { return };
        let texts = || lines.iter().flat_map(|line| texts_of(line));
        let [exact, claude, gemini] =
            [o200k, claude, gemini].map(|counter| texts().map(|text| counter.count_text(text)).sum::<u64>());
        let [claude, gemini] = [claude, gemini].map(|tokens| tokens * 100 / exact);
        println!("{kind}: {exact} tokens of o200k, Claude {claude} %, Gemini {gemini} %");
        assert!((130..210).contains(&claude) && (110..190).contains(&gemini));
    }
}

/// The longer strings of a value.
fn texts_of(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) if text.len() > 100 => vec![text],
        Value::Array(items) => items.iter().flat_map(texts_of).collect(),
        Value::Object(members) => members.values().flat_map(texts_of).collect(),
        _ => Vec::new(),
    }
}
