//! What is found in recorded conversations, against what their files say.
//!
//! They lie in `TURNKEEP_TRANSCRIPTS`, by default beside the crate; if they are
//! not there, nothing is tested, unless `TURNKEEP_REQUIRE_TRANSCRIPTS` is set.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/recorded.rs"]
mod recorded;

use bytes::Bytes;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use turnkeep::import::{Options, Thread, import};
use turnkeep::model::{EntryKind, Seq};
use turnkeep::summary::audit::{Subject, audit, unsupported_claims};
use turnkeep::summary::extract::Extract;
use turnkeep::summary::ledger::{FileState, Ledger};
use turnkeep::summary::{Said, Speaker, literals, prompt};
use turnkeep::tokens::TokenCounter;

/// The files of a folder, by name.
fn files(folder: &str) -> BTreeMap<String, Bytes> {
    let Some(root) = recorded::folder() else { return BTreeMap::new() };
    let entries = std::fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path());
    entries
        .filter(|path| path.extension().is_some_and(|extension| extension == "jsonl" || extension == "json"))
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, Bytes::from(std::fs::read(path).unwrap()))
        })
        .collect()
}

fn threads(bytes: &Bytes) -> Vec<Thread> {
    import(bytes, None, Options { verbatim: false }).unwrap().threads
}

fn said(thread: &Thread) -> Vec<Said<'_>> {
    let entries = thread.turns.iter().flat_map(|turn| &turn.entries);
    let messages = entries.filter(|entry| entry.kind == EntryKind::Message);
    messages.zip(1..).map(|(entry, seq)| Said::of(thread.format, Seq(seq), &entry.payload)).collect()
}

/// The files that the ledgers of a file's threads say were changed.
fn changed(bytes: &Bytes) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for thread in threads(bytes) {
        let mut ledger = Ledger::default();
        ledger.absorb(&said(&thread));
        let changed = ledger.files().filter(|file| file.state != FileState::Read);
        found.extend(changed.map(|file| file.path.clone()));
    }
    found
}

/// The JSON values of a file, of which two may stand on one line.
fn values(bytes: &Bytes) -> Vec<Value> {
    let values = serde_json::Deserializer::from_slice(bytes).into_iter::<Value>();
    values
        .map_while(Result::ok)
        .flat_map(|value| match value {
            Value::Object(mut object) if object.contains_key("loglines") => {
                object.remove("loglines").unwrap().as_array().unwrap().clone()
            }
            Value::Array(list) => list,
            other => vec![other],
        })
        .collect()
}

/// All blocks of that type in the contents of messages, also of a sub-agent's.
fn blocks<'v>(value: &'v Value, kind: &str, found: &mut Vec<&'v Value>) {
    if value["type"] == kind {
        found.push(value);
    }
    match value {
        Value::Array(list) => list.iter().for_each(|element| blocks(element, kind, found)),
        Value::Object(object) => {
            let contents =
                object.iter().filter(|(key, _)| ["content", "message", "data"].contains(&key.as_str()));
            contents.for_each(|(_, element)| blocks(element, kind, found));
        }
        _ => {}
    }
}

/// What the tools that write files were called with and did, and all commands.
fn claude_code(bytes: &Bytes) -> (BTreeSet<String>, Vec<String>) {
    let values = values(bytes);
    let (mut calls, mut results) = (Vec::new(), Vec::new());
    for value in &values {
        blocks(value, "tool_use", &mut calls);
        blocks(value, "tool_result", &mut results);
    }
    let done: BTreeSet<_> = results
        .iter()
        .filter(|result| result["is_error"] != true)
        .filter_map(|result| result["tool_use_id"].as_str())
        .collect();
    let (mut written, mut commands) = (BTreeSet::new(), Vec::new());
    for call in calls {
        let input = &call["input"];
        commands.extend(input["command"].as_str().map(str::to_owned));
        let writes = matches!(call["name"].as_str(), Some("Write" | "Edit" | "MultiEdit" | "NotebookEdit"));
        if writes && call["id"].as_str().is_some_and(|id| done.contains(id)) {
            written.extend(input["file_path"].as_str().map(str::to_owned));
        }
    }
    (written, commands)
}

/// The heads of patches in calls that did what they were to do, and all commands.
fn codex(bytes: &Bytes) -> (BTreeSet<String>, Vec<String>) {
    let items: Vec<_> = values(bytes)
        .into_iter()
        .filter(|line| line["type"] == "response_item")
        .map(|mut line| line["payload"].take())
        .collect();
    let mut outputs = BTreeMap::new();
    for item in &items {
        if item["type"].as_str().is_some_and(|kind| kind.ends_with("_call_output")) {
            outputs.entry(item["call_id"].to_string()).or_insert(item["output"].to_string());
        }
    }
    let (mut written, mut commands) = (BTreeSet::new(), Vec::new());
    for item in &items {
        let Some(input) = item["input"].as_str().or(item["arguments"].as_str()) else { continue };
        let output = outputs.get(&item["call_id"].to_string());
        let is_done = output
            .is_some_and(|output| output.contains("Success. Updated") || output.contains("Script completed"));
        if input.contains("*** Begin Patch") && is_done {
            // Within a script a line break is an escape.
            for head in ["*** Add File: ", "*** Update File: ", "*** Delete File: ", "*** Move to: "] {
                written.extend(
                    input
                        .split(head)
                        .skip(1)
                        .map(|rest| rest.split(['\n', '\\']).next().unwrap().trim_end().to_owned()),
                );
            }
        } else {
            commands.push(input.to_owned());
        }
    }
    (written, commands)
}

#[test]
fn the_ledger_has_every_file_that_a_tool_wrote_and_beyond_those_only_what_commands_name() {
    type Recount = fn(&Bytes) -> (BTreeSet<String>, Vec<String>);
    let cases: [(&str, Recount, [usize; 2]); 2] =
        [("claude-code", claude_code, CLAUDE_CODE), ("codex-rollout", codex, CODEX)];
    for (folder, recount, expected) in cases {
        let files = files(folder);
        if files.is_empty() {
            return;
        }
        let mut counts = [0; 2];
        for (name, bytes) in files {
            let changed = changed(&bytes);
            let (written, commands) = recount(&bytes);
            let missing: Vec<_> = written.difference(&changed).collect();
            assert!(missing.is_empty(), "{name}: {missing:?}");
            for path in changed.difference(&written) {
                let file = path.rsplit('/').next().unwrap();
                assert!(commands.iter().any(|command| command.contains(file)), "{name}: {path}");
                println!("{name}: {path}");
                counts[1] += 1;
            }
            counts[0] += written.len();
        }
        assert_eq!(counts, expected, "{folder}");
    }
}

/// Files that tools wrote in the recordings of Claude Code, and those that only
/// commands changed.
const CLAUDE_CODE: [usize; 2] = [77, 13];

/// The same of Codex.
const CODEX: [usize; 2] = [52, 15];

#[test]
fn recorded_conversations_are_summarized_within_bounds_and_lose_nothing_that_stands() {
    let counter = TokenCounter::new(
        turnkeep::model::WireFormat::AnthropicMessages,
        turnkeep::model::Tokenizer::Estimate,
    );
    let measure = |text: &str| counter.count_text(text);
    let mut statements = [0; 3];
    for folder in ["claude-code", "codex-rollout", "gemini-compression-scenarios"] {
        for (name, bytes) in files(folder) {
            for thread in threads(&bytes) {
                let entries = said(&thread);
                let found = literals::find(&entries);
                let has_text = |entry: &&Said<'_>| entry.texts.iter().any(|text| !text.trim().is_empty());
                let users = entries.iter().filter(|entry| entry.speaker == Speaker::User);
                statements[0] += users.filter(has_text).count();
                statements[1] += found.constraints.len();
                statements[2] += found.decisions.len();

                let texts: Vec<_> = entries.iter().flat_map(Said::all_texts).collect();
                let whole = audit(&found, texts.iter().map(AsRef::as_ref));
                assert!(whole.losses.is_empty(), "{name}: {:?}", &whole.losses[..whole.losses.len().min(9)]);

                let mut ledger = Ledger::default();
                ledger.absorb(&entries);
                let mut extract = Extract::default();
                extract.absorb(&entries);
                for budget in [0, 200, 2_000] {
                    let rendered = [ledger.render(budget, &measure), extract.render(budget, &measure)];
                    assert!(rendered.iter().all(|text| measure(text) <= budget), "{name}");
                }
                let source = prompt::render_source(&entries, None, 8_000, &measure);
                assert!(measure(&source.text) <= 8_000, "{name}");

                let extract = extract.render(4_000, &measure);
                let kept = audit(&found, [extract.as_str()]);
                let constraints = kept.tallies.get(&Subject::Constraint).copied().unwrap_or_default();
                assert_eq!(constraints.lost, 0, "{name}: {extract}");
                let claims = unsupported_claims(&extract, &found, texts.iter().map(AsRef::as_ref));
                assert_eq!(claims, [], "{name}");
            }
        }
    }
    println!("user messages, constraints, decisions: {statements:?}");
}
