//! Recorded conversations, cut anywhere.
//!
//! They lie in `TURNKEEP_TRANSCRIPTS`, by default beside the crate; if they are
//! not there, nothing is tested, unless `TURNKEEP_REQUIRE_TRANSCRIPTS` is set.

use super::{accepted, assemble, assembler, index_of, serve};
use crate::histories::entry;
use crate::transcripts::folder;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::Path;
use turnkeep::format::json::Value;
use turnkeep::model::{Entry, EntryKind, Origin, RepairKind, WireFormat};

/// Cuts of a long conversation that are tried.
const CUTS: usize = 40;

/// Where recordings of a format are: folder, beginnings of file names, and the
/// members of their JSON that hold message lists.
const RECORDINGS: &[(WireFormat, &str, &[&str], &[&str])] = &[
    (WireFormat::OpenaiChat, "openai-chat", &["tau-bench", "ohsdk-", "pyd-"], &["messages", "traj"]),
    (WireFormat::OpenaiResponses, "openai-responses", &["pyd-", "msaf-", "vercel-"], &["input", "output"]),
    (WireFormat::OpenaiResponses, "codex-rollout", &["fnox-", "gitsync-", "mise-"], &["payload"]),
    (WireFormat::AnthropicMessages, "anthropic-messages", &["anthropic-", "cline-", "pyd-"], &["messages"]),
    (WireFormat::GeminiContents, "gemini", &["pyd-"], &["contents"]),
    (WireFormat::GeminiContents, "gemini-compression-scenarios", &["scenario-"], &["history"]),
];

/// Conversations in them.
const CONVERSATIONS: usize = 273;

/// What windows of the whole conversations must repair. Nothing else has to be
/// touched in any of them.
const REPAIRS: &[(&str, RepairKind, usize)] = &[
    // A developer message stands between calls and their outputs.
    ("gitsync-019d6d29-longest.jsonl #0", RepairKind::ResultMoved, 7),
    // A picture follows the response that announces it.
    ("pyd-gemini3-tool-image.yaml #2", RepairKind::Merged, 1),
    // Results are lists of what is no block.
    ("cline-session.messages.json #0", RepairKind::ValueReplaced, 7),
    // The user speaks twice.
    ("scenario-spatial-scattering.json #0", RepairKind::Merged, 15),
];

/// Recordings with blocks or items of a kind that the judge does not know.
const UNJUDGED: &[&str] = &["cline-session.messages.json"];

/// The conversations in a folder, by file and number.
fn conversations(folder: &Path, names: &[&str], members: &[&str]) -> BTreeMap<String, Vec<Entry>> {
    let mut found = BTreeMap::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !names.iter().any(|beginning| name.starts_with(beginning)) {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let json = match path.extension().and_then(|extension| extension.to_str()) {
            Some("yaml") => serde_saphyr::from_str::<serde_json::Value>(&text).unwrap().to_string(),
            Some("json" | "traj") => text,
            Some("jsonl") if members == ["payload"] => rollout(&text),
            _ => continue,
        };
        let mut lists = Vec::new();
        collect(Value::of(json.as_bytes()), members, &mut lists);
        for (number, list) in lists.into_iter().enumerate() {
            found.insert(format!("{name} #{number}"), list);
        }
    }
    found
}

/// The items of a rollout, as one list.
fn rollout(text: &str) -> String {
    let lines = serde_json::Deserializer::from_str(text).into_iter::<&serde_json::value::RawValue>();
    let items = lines.filter_map(|line| {
        let line = Value::of(line.unwrap().get().as_bytes());
        line.member("type").filter(|kind| kind.is_text("response_item"))?;
        Some(String::from_utf8(line.member("payload")?.bytes().to_vec()).unwrap())
    });
    format!(r#"{{"payload":[{}]}}"#, items.collect::<Vec<_>>().join(","))
}

/// All lists of objects with a role or type that are members of such a name.
fn collect(value: Value<'_>, members: &[&str], found: &mut Vec<Vec<Entry>>) {
    for (key, value) in value.members() {
        let is_message = |element: &Value<'_>| element.member("role").or(element.member("type")).is_some();
        let is_list = members.iter().any(|member| key.is_text(member)) && value.is_array();
        if is_list && value.elements().all(|element| is_message(&element)) {
            let payloads = value.elements().map(|element| Bytes::copy_from_slice(element.bytes()));
            found.push(
                payloads.zip(1..).map(|(payload, seq)| entry(seq, EntryKind::Message, payload)).collect(),
            );
        } else {
            collect(value, members, found);
        }
    }
    value.elements().for_each(|element| collect(element, members, found));
}

/// Cuts of a conversation of so many entries.
pub(super) fn cuts(length: usize) -> impl Iterator<Item = usize> {
    let step = length.div_ceil(CUTS).max(1);
    (0..length).step_by(step).chain([length.saturating_sub(1), length])
}

#[test]
fn recorded_conversations_have_windows_at_every_cut() {
    each_conversation(check);
}

/// Looks at each recorded conversation and whether it can be judged; returns how
/// many there are.
pub(super) fn each_conversation(mut look: impl FnMut(WireFormat, &str, &[Entry], bool)) -> usize {
    let Some(folder) = folder() else { return 0 };
    let mut count = 0;
    for (format, part, names, members) in RECORDINGS {
        for (name, log) in conversations(&folder.join(part), names, members) {
            let is_judged = !UNJUDGED.iter().any(|unjudged| name.starts_with(unjudged));
            look(*format, &name, &log, is_judged);
            count += 1;
        }
    }
    assert_eq!(count, CONVERSATIONS);
    count
}

fn check(format: WireFormat, name: &str, log: &[Entry], is_judged: bool) {
    let mut repairs = BTreeMap::new();
    for repair in serve(&assembler(format, log), false).repairs {
        *repairs.entry(repair.kind).or_insert(0) += 1;
    }
    let is_mended = repairs.contains_key(&RepairKind::ValueReplaced);
    let expected = REPAIRS.iter().filter(|(of, ..)| *of == name).map(|(_, kind, count)| (*kind, *count));
    assert_eq!(repairs, expected.collect(), "{name}");
    for cut in cuts(log.len()) {
        for close_pending in [false, true] {
            let served = assemble(format, &log[..cut], close_pending);
            if is_judged {
                accepted(format, &served).unwrap();
            }
            for item in served.items {
                if let (Origin::Log, [seq], false) = (item.origin, item.seqs.as_slice(), is_mended) {
                    assert_eq!(item.payload, log[index_of(*seq)].payload, "{name}");
                }
            }
        }
    }
}
