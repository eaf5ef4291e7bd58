//! Codex rollouts: each line is `{"timestamp","type","payload"}`, and the
//! payloads of `response_item` are items of OpenAI Responses, kept as they are.
//!
//! A `compacted` line is kept as a record, with the history that it put in the
//! place of all before. The log goes on after it: it holds all that was ever
//! said, and its windows are cut by this service, not by Codex.

use super::file::{File, Piece};
use super::json::{Object, compose};
use super::turns::{ItemSteps, Turns};
use super::verbatim::{Record, records};
use super::{Findings, ImportedEntry, Parent, ParentThread, Thread, id_hint, time, wire};
use crate::limits::PREAMBLE_BYTES_MAX;
use crate::model::{EntryKind, Usage, WireFormat};
use bytes::Bytes;

/// The thread of a rollout.
pub(super) fn thread(file: &File<'_>, pieces: &[Piece<'_>], findings: &mut Findings) -> Thread {
    let mut rollout = Rollout {
        file,
        findings,
        turns: Turns::new(),
        steps: ItemSteps::new(pieces.iter().filter_map(item)),
        session: None,
        preamble: None,
        model: String::new(),
    };
    for piece in pieces {
        rollout.piece(piece);
    }
    let Rollout { turns, session, preamble, .. } = rollout;
    let parent = session.as_ref().and_then(|session| session.text("parent_thread_id"));
    Thread {
        id_hint: session.and_then(|session| id_hint(&session.text("id")?)),
        parent: parent.and_then(|id| id_hint(&id)).map(|id| Parent {
            thread: ParentThread::Elsewhere(id),
            call_id: None,
            seq: None,
        }),
        format: WireFormat::OpenaiResponses,
        preamble,
        turns: turns.finish(),
    }
}

/// The item of a line, if it holds one.
fn item<'a>(piece: &Piece<'a>) -> Option<Object<'a>> {
    let Piece::Value(raw) = piece else {
        return None;
    };
    let line = Object::parse(raw)?;
    match line.text("type")?.as_ref() {
        "response_item" => line.object("payload"),
        _ => is_bare_item(&line).then_some(line),
    }
}

/// Whether a line is an item without an envelope, as the first versions wrote
/// them.
fn is_bare_item(line: &Object<'_>) -> bool {
    line.get("payload").is_none()
        && line.text("type").is_some_and(|kind| kind == "message" || wire::is_item(&kind))
}

/// What becomes of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Kept, but no message.
    Record,
    /// Left out and counted.
    Strip,
    /// What the provider reported for a step.
    Usage,
    /// Kept as a record, with a warning.
    Unknown,
}

/// The verdict on a line that is no item, by its type and its payload's.
fn verdict(kind: &str, event: &str) -> Verdict {
    match kind {
        "session_meta" | "turn_context" | "compacted" => Verdict::Record,
        "world_state" => Verdict::Strip,
        "event_msg" => of_event(event),
        _ => Verdict::Unknown,
    }
}

fn of_event(event: &str) -> Verdict {
    match event {
        "token_count" => Verdict::Usage,
        "task_started"
        | "task_complete"
        | "turn_aborted"
        | "collab_agent_spawn_end"
        | "collab_waiting_end"
        | "collab_agent_interaction_end"
        | "collab_close_end"
        | "thread_settings_applied"
        | "thread_name_updated"
        | "thread_goal_updated" => Verdict::Record,
        "context_compacted"
        | "user_message"
        | "agent_message"
        | "agent_reasoning"
        | "exec_command_end"
        | "patch_apply_end"
        | "mcp_tool_call_end"
        | "web_search_end"
        | "dynamic_tool_call_request"
        | "dynamic_tool_call_response"
        | "item_completed" => Verdict::Strip,
        _ => Verdict::Unknown,
    }
}

struct Rollout<'f, 'a> {
    file: &'f File<'a>,
    findings: &'f mut Findings,
    turns: Turns,
    steps: ItemSteps<'a>,
    session: Option<Object<'a>>,
    preamble: Option<Bytes>,
    model: String,
}

impl<'a> Rollout<'_, 'a> {
    fn piece(&mut self, piece: &Piece<'a>) {
        let line_number = self.file.line_of_piece(piece);
        if let Piece::Value(raw) = piece
            && let Some(line) = Object::parse(raw)
        {
            self.line(line_number, raw, line);
            return;
        }
        self.findings.warn(line_number, "no JSON object: kept as a record");
        self.turns.push_records(line_number, records(Record::Unread, line_number, 0, piece.bytes()));
    }

    fn line(&mut self, line_number: u64, raw: &'a str, line: Object<'a>) {
        let at = time(&line);
        let entry = |payload| ImportedEntry { payload, kind: EntryKind::Message, at, line: line_number };
        let kind = line.text("type").unwrap_or_default();
        let payload = line.get("payload").and_then(|raw| Some((raw, Object::parse(raw)?)));
        match (&*kind, payload) {
            ("response_item", Some((raw, item))) => {
                self.item(line_number, &item, entry(self.file.slice(raw)));
            }
            (_, None) if is_bare_item(&line) => self.item(line_number, &line, entry(self.file.slice(raw))),
            (_, payload) => {
                let payload = payload.map(|(_, payload)| payload);
                let event = payload.as_ref().and_then(|payload| payload.text("type")).unwrap_or_default();
                let mut verdict = verdict(&kind, &event);
                let kind = if line.get("record_type").is_some() { "record_type".into() } else { kind };
                match (&*kind, payload) {
                    ("session_meta", Some(meta)) => self.session_meta(line_number, meta),
                    ("turn_context", Some(context)) => self.turn_context(&context),
                    ("event_msg", Some(event)) if verdict == Verdict::Usage => {
                        verdict = self.usage(&event);
                    }
                    ("record_type", _) => verdict = Verdict::Strip,
                    ("", None) if self.session.is_none() && line.get("id").is_some() => {
                        verdict = Verdict::Record;
                        self.session_meta(line_number, line);
                    }
                    _ => {}
                }
                self.keep(line_number, verdict, &kind, &event, entry(self.file.slice(raw)));
            }
        }
    }

    fn item(&mut self, line_number: u64, item: &Object<'a>, entry: ImportedEntry) {
        let kind = item.text("type").unwrap_or_default();
        if kind == "ghost_snapshot" {
            // The client's own undo point, which it does not send.
            self.turns.push_meta(entry);
            return;
        }
        if kind != "message" && !wire::is_item(&kind) {
            self.findings.warn(line_number, &format!("unknown item `{kind}`: kept as a message"));
        }
        let step = self.steps.step(item);
        self.turns.push(step, entry);
    }

    fn keep(&mut self, line_number: u64, verdict: Verdict, kind: &str, event: &str, entry: ImportedEntry) {
        let name = if event.is_empty() { kind.to_owned() } else { format!("{kind}/{event}") };
        match verdict {
            Verdict::Strip => self.findings.strip(&name),
            Verdict::Record | Verdict::Usage => self.turns.push_meta(entry),
            Verdict::Unknown => {
                self.findings.warn(line_number, &format!("unknown type `{name}`: kept as a record"));
                self.turns.push_meta(entry);
            }
        }
    }

    /// A resumed or forked session has several; the first one is its own.
    fn session_meta(&mut self, line_number: u64, meta: Object<'a>) {
        let instructions = meta.object("base_instructions").and_then(|base| base.value("text"));
        let instructions = instructions.or_else(|| meta.value("instructions"));
        let fields = [("instructions", instructions), ("tools", meta.value("dynamic_tools"))];
        let fields: Vec<_> = fields.into_iter().filter_map(|(key, raw)| Some((key, raw?))).collect();
        if self.preamble.is_none() && !fields.is_empty() {
            let preamble = compose(&fields);
            if preamble.len() <= PREAMBLE_BYTES_MAX {
                self.preamble = Some(preamble);
            } else {
                self.findings.warn(line_number, "too large for a preamble: kept as a record only");
            }
        }
        self.session.get_or_insert(meta);
    }

    fn turn_context(&mut self, context: &Object<'a>) {
        if let Some(model) = context.text("model") {
            self.model = model.into_owned();
        }
    }

    /// Gives the open step its usage. Without one the report is kept as it is.
    fn usage(&mut self, event: &Object<'a>) -> Verdict {
        let Some(last) = event.object("info").and_then(|info| info.object("last_token_usage")) else {
            return Verdict::Strip;
        };
        let cached = last.number("cached_input_tokens");
        let of_a_step = self.turns.set_usage(Usage {
            model: self.model.clone(),
            input_tokens: last.number("input_tokens").saturating_sub(cached),
            output_tokens: last.number("output_tokens"),
            cache_read_tokens: cached,
            cache_write_tokens: last.number("cache_write_input_tokens"),
            ..Usage::default()
        });
        if of_a_step { Verdict::Strip } else { Verdict::Record }
    }
}
