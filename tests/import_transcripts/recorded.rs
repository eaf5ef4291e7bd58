//! Recorded transcripts.

use super::{PLAIN, check_rules, entries, files, messages};
use crate::transcripts::folder;
use bytes::Bytes;
use memchr::memmem;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::Path;
use turnkeep::import::{Import, ImportedEntry, ParentThread, Source, Thread, detect, import};
use turnkeep::model::{EntryKind, Seq, WireFormat};

fn read(path: &Path) -> Bytes {
    Bytes::from(fs::read(path).unwrap())
}

/// The files of some of the folders.
fn recorded(folders: &[&str]) -> Vec<(String, Bytes)> {
    let Some(root) = folder() else {
        return Vec::new();
    };
    let all = folders.iter().flat_map(|folder| files(&root.join(folder)));
    let name = |path: &Path| path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
    all.map(|path| (name(&path), read(&path))).collect()
}

fn imported(bytes: &Bytes) -> Import {
    import(bytes, None, PLAIN).unwrap()
}

const FOLDERS: [&str; 12] = [
    "anthropic-messages",
    "claude-code",
    "claude-code-growth",
    "claude-code-per-type",
    "claude-code-stripped",
    "codex-rollout",
    "gemini",
    "gemini-compression-scenarios",
    "openai-chat",
    "openai-responses",
    "other-agents",
    "pi-session",
];

/// Files of no provider's form, whatever their folder: of clients and frameworks
/// that have a form of their own, and recorded streams.
const OF_NO_API: [&str; 23] = [
    "claude-code-stripped/gitsync-01KXDM08-entire-compact.jsonl",
    "gemini/agentsview-standard_session.json",
    "gemini/agentsview-system_messages.json",
    "gemini/agentsview-thinking_only.json",
    "gemini/entire-gemini-cli-a.json",
    "gemini/entire-gemini-cli-b.json",
    "gemini/gcli-browser-agent.persistent-session.responses",
    "gemini/gcli-context-compress-interactive.compress.responses",
    "gemini/gcli-flicker-detector.max-height.responses",
    "gemini/vct-gemini-cli-jsonl.jsonl",
    "openai-chat/autogen-self_teaching.json",
    "openai-chat/deepagents-summarization-seed.json",
    "openai-chat/docent-inspect-ctf-NUL.json",
    "openai-chat/inspect-browser.json",
    "openai-chat/inspect-images-toolcall.json",
    "openai-chat/ohsdk-events.jsonl",
    "openai-chat/openhands-multi-swe-output.jsonl",
    "openai-chat/openhands-runtime-basic.json",
    "openai-chat/tau2-voice-sim-7c6a.json",
    "openai-chat/toolbench-g3-13.json",
    "openai-chat/whoandwhen-hand-30.json",
    "openai-chat/whoandwhen-hand-51.json",
    "openai-responses/agents-sdk-pending-approval.json",
];

/// What a recorded file is.
fn expected_source(name: &str) -> Source {
    let (folder, file) = name.split_once('/').unwrap();
    let extension = Path::new(file).extension().unwrap().to_str().unwrap();
    match folder {
        // Cassettes and server-sent events.
        _ if matches!(extension, "yaml" | "txt") => Source::Text,
        _ if OF_NO_API.contains(&name) => Source::Json,
        "anthropic-messages" => Source::Anthropic,
        "claude-code" | "claude-code-growth" | "claude-code-per-type" | "claude-code-stripped" => {
            Source::ClaudeCode
        }
        "codex-rollout" => Source::Codex,
        "gemini" | "gemini-compression-scenarios" => Source::Gemini,
        "openai-chat" => Source::OpenaiChat,
        "openai-responses" => Source::OpenaiResponses,
        "other-agents" | "pi-session" => Source::Json,
        _ => panic!("{name} is new"),
    }
}

#[test]
fn each_file_is_what_it_is() {
    for (name, bytes) in recorded(&FOLDERS) {
        assert_eq!(detect(&bytes), expected_source(&name), "{name}");
    }
}

#[test]
fn each_file_is_imported_by_the_rules_and_comes_back_byte_for_byte() {
    for (name, bytes) in recorded(&FOLDERS) {
        println!("{name}");
        check_rules(&bytes, None);
    }
}

/// Whether all that a payload says is the file's bytes: the payload itself, at
/// its line, or each of its values, or each element of an array among them.
fn is_of_file(file: &[u8], line_starts: &[usize], entry: &ImportedEntry) -> bool {
    let line = usize::try_from(entry.line).unwrap();
    let (start, end) = (line_starts[line - 1], line_starts.get(line).copied().unwrap_or(file.len()));
    let until = (end + entry.payload.len()).min(file.len());
    if memmem::find(&file[start..until], &entry.payload).is_some() {
        return true;
    }
    let holds = |raw: &str| {
        let is_role = matches!(raw, r#""user""# | r#""assistant""# | r#""tool""#);
        let find = |file| memmem::find(file, raw.as_bytes());
        is_role || find(&file[start..]).or_else(|| find(file)).is_some()
    };
    let fields: HashMap<&str, &RawValue> = serde_json::from_slice(&entry.payload).unwrap();
    fields.values().all(|value| match serde_json::from_str::<Vec<&RawValue>>(value.get()) {
        Ok(elements) => elements.iter().all(|raw| holds(raw.get())),
        Err(_) => holds(value.get()),
    })
}

#[test]
fn each_payload_is_put_together_from_the_bytes_of_the_file() {
    for (name, bytes) in recorded(&FOLDERS) {
        let found = imported(&bytes);
        if found.source == Source::Text {
            // Lines as texts, which together are the file.
            let text = |entry: &ImportedEntry| {
                let line: BTreeMap<String, String> = serde_json::from_slice(&entry.payload).unwrap();
                line["text"].clone()
            };
            assert_eq!(entries(&found.threads[0]).map(text).collect::<String>().as_bytes(), &bytes[..]);
            continue;
        }
        let line_starts: Vec<_> =
            std::iter::once(0).chain(memchr::memchr_iter(b'\n', &bytes).map(|at| at + 1)).collect();
        for entry in found.threads.iter().flat_map(entries) {
            let is_unread = entry.payload.starts_with(b"{\"turnkeep_unread\":");
            assert!(is_unread || is_of_file(&bytes, &line_starts, entry), "{name}: {entry:?}");
        }
    }
}

/// A line of Claude Code or Codex, as far as it matters here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    #[serde(default)]
    r#type: String,
    #[serde(default)]
    uuid: String,
    #[serde(default)]
    is_sidechain: bool,
    #[serde(default)]
    is_api_error_message: bool,
    #[serde(default)]
    is_aborted_mid_stream: bool,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(default)]
    role: String,
    #[serde(default)]
    model: String,
    #[serde(borrow)]
    content: &'a RawValue,
}

#[derive(Deserialize)]
struct Block {
    #[serde(default)]
    r#type: String,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    call_id: Option<String>,
    #[serde(default)]
    tool_use_id: Option<String>,
}

/// The lines of a file, two on one line included. A file that is one document
/// has none.
fn lines(bytes: &[u8]) -> impl Iterator<Item = Line<'_>> {
    let lines = std::str::from_utf8(bytes).unwrap().lines();
    let values = lines.flat_map(|line| serde_json::Deserializer::from_str(line).into_iter::<&RawValue>());
    values.filter_map(|value| serde_json::from_str(value.ok()?.get()).ok())
}

/// The raw blocks of a message's content.
fn blocks<'a>(content: &'a RawValue) -> Vec<&'a str> {
    match serde_json::from_str::<Vec<&'a RawValue>>(content.get()) {
        Ok(blocks) => blocks.into_iter().map(RawValue::get).collect(),
        Err(_) => vec![content.get()],
    }
}

fn message_blocks<'a>(payload: &'a [u8]) -> (String, Vec<&'a str>) {
    let message: Message<'a> = serde_json::from_slice(payload).unwrap();
    (message.role, blocks(message.content))
}

fn block(raw: &str) -> Block {
    serde_json::from_str(raw).unwrap_or(Block {
        r#type: "text".into(),
        id: None,
        call_id: None,
        tool_use_id: None,
    })
}

const CLAUDE_CODE: [&str; 4] =
    ["claude-code", "claude-code-growth", "claude-code-per-type", "claude-code-stripped"];

/// Recorded sessions of Claude Code in JSON Lines.
fn claude_code() -> Vec<(String, Bytes)> {
    let mut all = recorded(&CLAUDE_CODE);
    all.retain(|(name, _)| {
        expected_source(name) == Source::ClaudeCode && Path::new(name).extension().unwrap() == "jsonl"
    });
    all
}

/// The threads of a session that are not made from lines of progress.
fn of_own_lines(import: &Import) -> impl Iterator<Item = &Thread> {
    let has_own_lines = |thread: &&Thread| {
        // Only the threads inside lines of progress name their call so.
        thread.id_hint.as_ref().is_none_or(|id| {
            !["a6ae7ab", "a9b60a9", "a683f63"].iter().any(|agent| id.as_str().ends_with(agent))
        })
    };
    import.threads.iter().filter(has_own_lines)
}

#[test]
fn every_block_of_claude_code_is_in_one_message() {
    for (name, bytes) in claude_code() {
        let mut expected = Vec::new();
        let mut seen = HashSet::new();
        for line in lines(&bytes) {
            let is_message = matches!(&*line.r#type, "user" | "assistant");
            let message = line.message.and_then(|raw| serde_json::from_str::<Message<'_>>(raw.get()).ok());
            let Some(message) = message.filter(|message| is_message && message.model != "<synthetic>") else {
                continue;
            };
            let is_made_by_client = line.is_api_error_message || line.is_aborted_mid_stream;
            let content = (line.uuid.clone(), line.is_sidechain, message.content.get());
            if !is_made_by_client && (line.uuid.is_empty() || seen.insert(content)) {
                expected.extend(blocks(message.content));
            }
        }
        // The one content that is none: not of blocks.
        expected.retain(|raw| *raw != r#""wow error""#);
        let found = imported(&bytes);
        let payloads = of_own_lines(&found).flat_map(messages);
        let mut found: Vec<_> = payloads.flat_map(|payload| message_blocks(payload).1).collect();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found.len(), expected.len(), "{name}");
        assert!(found == expected, "{name}");
    }
}

#[test]
fn claude_code_gives_conversations_that_the_api_takes() {
    // Slices, and calls that were never answered, stay as they are.
    let orphans = HashMap::from([("claude-code/cli-47a78253-orphan-result.jsonl", 1)]);
    for (name, bytes) in claude_code() {
        let mut results_without_call = 0;
        for thread in &imported(&bytes).threads {
            let messages: Vec<_> = messages(thread).into_iter().map(message_blocks).collect();
            let results = |blocks: &[&str]| -> HashSet<_> {
                let results =
                    blocks.iter().map(|raw| block(raw)).filter(|block| block.r#type == "tool_result");
                results.filter_map(|block| block.tool_use_id).collect()
            };
            let answered: HashSet<_> = messages.iter().flat_map(|(_, blocks)| results(blocks)).collect();
            let mut seen = HashSet::new();
            let mut open = HashSet::new();
            for (role, blocks) in &messages {
                let found = results(blocks);
                results_without_call += found.difference(&open).count();
                assert!(open.is_subset(&found), "{name}: results are not in the next message");
                let calls = blocks.iter().map(|raw| block(raw)).filter(|block| block.r#type == "tool_use");
                open = calls.filter_map(|call| call.id).filter(|id| answered.contains(id)).collect();
                assert!(open.is_empty() || role == "assistant");
                let kinds: Vec<_> = blocks.iter().map(|raw| block(raw).r#type == "tool_result").collect();
                assert!(kinds.is_sorted_by(|a, b| a >= b), "{name}: results come before other blocks");
                assert!(open.iter().all(|id| seen.insert(id.clone()) || id.starts_with('[')), "{name}");
            }
            assert!(open.is_empty(), "{name}: results are not in the next message");
        }
        // A file of one line is a slice too.
        if !name.starts_with("claude-code-per-type") {
            assert_eq!(results_without_call, orphans.get(&*name).copied().unwrap_or(0), "{name}");
        }
    }
}

#[test]
fn every_item_of_codex_is_an_entry_in_its_order() {
    for (name, bytes) in recorded(&["codex-rollout"]) {
        let items =
            lines(&bytes).filter(|line| line.r#type == "response_item").filter_map(|line| line.payload);
        let sent = items.map(RawValue::get).filter(|raw| block(raw).r#type != "ghost_snapshot");
        let expected: Vec<_> = sent.collect();
        let found = imported(&bytes);
        let payloads: Vec<_> =
            messages(&found.threads[0]).into_iter().map(|raw| std::str::from_utf8(raw).unwrap()).collect();
        assert!(payloads == expected, "{name}");
        // A call and its output are in one turn.
        for turn in &found.threads[0].turns {
            let of_turn = turn.entries.iter().filter(|entry| entry.kind == EntryKind::Message);
            let items: Vec<_> =
                of_turn.map(|entry| block(std::str::from_utf8(&entry.payload).unwrap())).collect();
            let ids = |outputs: bool| -> HashSet<_> {
                let of_kind = items.iter().filter(|item| item.r#type.ends_with("_output") == outputs);
                of_kind.filter_map(|item| item.call_id.clone()).collect()
            };
            // A collection of lines of many sessions, with ids left out.
            let is_collection = name.ends_with("as-codex-small-trimmed.jsonl");
            assert!(is_collection || ids(true).is_subset(&ids(false)), "{name}");
        }
    }
}

/// The numbers of tool calls that the folder's own table gives.
fn calls_by_readme() -> BTreeMap<String, usize> {
    let Some(root) = folder() else {
        return BTreeMap::new();
    };
    let mut folder = String::new();
    let mut calls = BTreeMap::new();
    for line in fs::read_to_string(root.join("README.md")).unwrap().lines() {
        if let Some(title) = line.strip_prefix("### ") {
            title.split('/').next().unwrap().clone_into(&mut folder);
        }
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        if let [_, file, _, _, _, count, _, _, _] = cells[..]
            && let Ok(count) = count.parse()
        {
            calls.insert(format!("{folder}/{file}"), count);
        }
    }
    calls
}

#[test]
fn no_call_is_lost_or_doubled() {
    let expected = calls_by_readme();
    for (name, bytes) in recorded(&["claude-code", "claude-code-growth", "codex-rollout"]) {
        let found = imported(&bytes);
        // The table leaves out what is inside lines of progress, and calls of
        // hosted tools, which have no output.
        let is_call =
            |raw: &str| matches!(&*block(raw).r#type, "tool_use" | "function_call" | "custom_tool_call");
        let calls = of_own_lines(&found).flat_map(messages).map(|payload| match found.source {
            Source::Codex => usize::from(is_call(std::str::from_utf8(payload).unwrap())),
            _ => message_blocks(payload).1.iter().filter(|raw| is_call(raw)).count(),
        });
        assert_eq!(calls.sum::<usize>(), expected[&name], "{name}");
    }
}

#[test]
fn sub_agents_are_threads_that_know_their_call() {
    let calls = |name: &str| {
        let (_, bytes) = claude_code().into_iter().find(|(file, _)| file == name)?;
        let found = imported(&bytes);
        let main: Vec<_> = entries(&found.threads[0]).collect();
        let mut calls = HashSet::new();
        for thread in &found.threads[1..] {
            let parent = thread.parent.as_ref().unwrap();
            assert_eq!(parent.thread, ParentThread::Here(0));
            let Seq(seq) = parent.seq.unwrap();
            let holder = std::str::from_utf8(&main[usize::try_from(seq).unwrap() - 1].payload).unwrap();
            let call_id = parent.call_id.clone().unwrap();
            assert!(holder.contains(&format!("\"id\":\"{call_id}\"")), "{holder}");
            calls.insert(call_id);
        }
        assert_eq!(calls.len(), found.threads.len() - 1, "each has a call of its own");
        Some(calls.len())
    };
    if folder().is_some() {
        assert_eq!(calls("claude-code/ccv-fe5e1c67-sidechain.jsonl"), Some(5));
        assert_eq!(calls("claude-code/cli-170cebcc-fffd.jsonl"), Some(2));
        assert_eq!(calls("claude-code/cli-e8106766-image480k.jsonl"), Some(1));
    }
}

/// Asserts that a shorter file of a session gives the beginning of what the
/// longer one gives: all turns but those that go on where it ends.
fn assert_grows(name: &str, shorter: &[u8], longer: &[u8]) {
    let [shorter, longer] = [shorter, longer].map(|bytes| imported(&Bytes::copy_from_slice(bytes)));
    let [shorter, longer] = [&shorter.threads[0], &longer.threads[0]];
    let settled = shorter.turns.len() - 1;
    assert!(settled > 0 && longer.turns.len() >= shorter.turns.len(), "{name}");
    assert!(shorter.turns[..settled] == longer.turns[..settled], "{name}");
    assert_eq!(shorter.preamble, longer.preamble, "{name}");
    assert_eq!(shorter.id_hint, longer.id_hint, "{name}");
}

#[test]
fn a_file_that_grows_gives_the_same_turns_and_more() {
    let growth = recorded(&["claude-code-growth"]);
    for pair in growth.windows(2) {
        assert!(pair[1].1.starts_with(&pair[0].1));
        assert_grows(&pair[0].0, &pair[0].1, &pair[1].1);
    }
    let (_, orphan) = recorded(&["codex-rollout"])
        .into_iter()
        .find(|(name, _)| name.ends_with("019ddeed-image-orphan.jsonl"))
        .unwrap_or_default();
    let lengths = [129_287, 205_451, 378_455, 427_394, 465_099, 514_511, 553_776, 577_222];
    for pair in lengths.windows(2).filter(|_| !orphan.is_empty()) {
        assert_grows("codex", &orphan[..pair[0]], &orphan[..pair[1]]);
    }
}

#[test]
fn messages_of_plain_json_are_the_files_own() {
    // Threads, messages of the first one, and whether there is a preamble.
    let expected = [
        ("anthropic-messages/anthropic-sdk-runner-32da.json", 1, 2, true),
        ("anthropic-messages/cline-session.messages.json", 1, 32, true),
        ("anthropic-messages/vercel-anthropic-pptx-skill.json", 1, 1, false),
        ("gemini/adk-flow_complex_spark.session.json", 1, 9, false),
        ("gemini/entire-gemini-cli-a.json", 1, 6, false),
        // Of 28 lines, 5 are written again, and 12 are the client's own.
        ("gemini/vct-gemini-cli-jsonl.jsonl", 1, 11, false),
        ("gemini-compression-scenarios/scenario-constraints.json", 1, 122, false),
        ("openai-chat/docent-inspect-ctf-NUL.json", 2, 8, false),
        ("openai-chat/mini-swe-github_issue.traj.json", 1, 22, false),
        ("openai-chat/ohsdk-claude-sonnet-1757015046.707.json", 1, 13, true),
        ("openai-chat/sweagent-marshmallow-from-source.traj", 1, 28, false),
        ("openai-chat/tau-bench-gpt-4o-airline.json", 200, 32, false),
        ("openai-chat/tau2-voice-sim-7c6a.json", 1, 1810, false),
        ("openai-chat/whoandwhen-hand-51.json", 1, 123, false),
        ("openai-responses/msaf-tool_call-request.json", 1, 1, true),
        ("openai-responses/vercel-mcp-tool.json", 1, 5, true),
        ("other-agents/kimi-assistant_tools.jsonl", 1, 200, false),
        ("pi-session/pi-before-compaction.jsonl", 1, 1003, false),
    ];
    let files: BTreeMap<_, _> = recorded(&FOLDERS).into_iter().collect();
    for (name, threads, of_first, has_preamble) in expected {
        let Some(bytes) = files.get(name) else {
            assert!(files.is_empty(), "{name} is not there");
            continue;
        };
        let found = imported(bytes);
        let main = &found.threads[0];
        assert_eq!(
            (found.threads.len(), messages(main).len(), main.preamble.is_some()),
            (threads, of_first, has_preamble),
            "{name}"
        );
    }
}

#[test]
fn each_trajectory_is_a_thread_with_its_messages() {
    #[derive(Deserialize)]
    struct Trajectory<'a> {
        #[serde(borrow)]
        traj: Vec<&'a RawValue>,
    }
    for (_, bytes) in recorded(&["openai-chat"]).iter().filter(|(name, _)| name.contains("tau-bench")) {
        let expected: Vec<Trajectory<'_>> = serde_json::from_slice(bytes).unwrap();
        let found = imported(bytes);
        assert_eq!(found.threads.len(), expected.len());
        for (thread, expected) in found.threads.iter().zip(expected) {
            let expected: Vec<_> = expected.traj.iter().map(|raw| raw.get().as_bytes()).collect();
            assert_eq!(messages(thread), expected);
            assert_eq!(thread.format, WireFormat::OpenaiChat);
        }
    }
}
