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
use turnkeep::clock::Micros;
use turnkeep::import::{Options, Thread, import};
use turnkeep::limits::SNIP_CHARACTERS;
use turnkeep::model::{Entry, EntryKind, Seq, Version};
use turnkeep::summary::audit::{Subject, audit, unsupported_claims};
use turnkeep::summary::extract::Extract;
use turnkeep::summary::ledger::{FileState, Ledger, stale_results};
use turnkeep::summary::{Said, Speaker, literals, prompt};
use turnkeep::tokens::TokenCounter;
use turnkeep::window::{Assembler, snippable, snips};

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

/// Of a call in an entry that has no other: the arguments as text.
fn arguments(entry: &Said<'_>) -> String {
    entry.calls.iter().map(|call| call.arguments.as_ref()).collect::<Vec<_>>().join("\n")
}

#[test]
fn stale_looks_at_recorded_files_are_snipped_before_all_else() {
    let mut counts = [0; 3];
    for folder in ["claude-code", "codex-rollout"] {
        for (name, bytes) in files(folder) {
            for thread in threads(&bytes) {
                let entries = said(&thread);
                let stale = stale_results(&entries);
                for (look, later) in &stale {
                    // Independent of what tools do: the later call names a file that the
                    // call of the look named.
                    let result = &entries[usize::try_from(look.0).unwrap() - 1];
                    let by = arguments(&entries[usize::try_from(later.0).unwrap() - 1]);
                    assert!(later > look, "{name}: {look}");
                    let ids: Vec<_> = result.outcomes.iter().map(|outcome| outcome.id.as_ref()).collect();
                    let calls = entries.iter().flat_map(|entry| &entry.calls);
                    let looked: String = calls
                        .filter(|call| ids.contains(&call.id.as_ref()))
                        .map(|call| call.arguments.to_string() + " ")
                        .collect();
                    let is_of_name = |c: char| c.is_alphanumeric() || "._-".contains(c);
                    let mut names = looked.split(|c| !is_of_name(c)).filter(|word| word.contains('.'));
                    assert!(names.any(|file| by.contains(file)), "{name}: {look} by {later}: {looked} {by}");
                }
                let counter = TokenCounter::new(thread.format, turnkeep::model::Tokenizer::Estimate);
                let mut assembler = Assembler::new(thread.format, counter);
                let messages = thread.turns.iter().flat_map(|turn| &turn.entries);
                let messages = messages.filter(|entry| entry.kind == EntryKind::Message);
                for (message, seq) in messages.zip(1..) {
                    let reading = turnkeep::format::read(thread.format, &message.payload);
                    assembler.push(Entry {
                        seq: Seq(seq),
                        version: Version(1),
                        at: Micros(0),
                        kind: EntryKind::Message,
                        tokens: counter.count_entry(&reading),
                        payload: message.payload.clone(),
                    });
                }
                let found = snippable(&assembler.window(false), SNIP_CHARACTERS, 4_000);
                let total: u64 = found.iter().map(|entry| entry.win).sum();
                let is_stale = |seq: Seq| stale.contains_key(&seq);
                let all_stale = found.iter().filter(|entry| is_stale(entry.seq)).count();
                for aim in [1, total / 3, total] {
                    let chosen = snips(&found, is_stale, aim, 0);
                    let chosen_stale = chosen.iter().filter(|seq| is_stale(**seq)).count();
                    assert!(chosen_stale == chosen.len() || chosen_stale == all_stale, "{name}");
                }
                counts[0] += stale.len();
                counts[1] += all_stale;
                counts[2] += found.len();
            }
        }
    }
    if recorded::folder().is_some() {
        assert_eq!(counts, STALE);
    }
}

/// Entries with stale results in the recordings, those of them that may be snipped,
/// and all that may.
const STALE: [usize; 3] = [239, 229, 751];

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
