//! Claude Code sessions: a line for each content block, mixed with records of
//! the client's own.
//!
//! Lines become messages of Anthropic Messages: blocks with the same message id
//! are one assistant message, and all results of its calls, wherever they stand,
//! are the user message after it. The blocks are the file's bytes. What a line
//! is by its type is in [`lines`]; how messages are made of them in [`messages`].

mod lines;
mod messages;

use super::file::{File, Piece};
use super::json::{Object, elements, text};
use super::verbatim::{Record, records};
use super::{Findings, Parent, ParentThread, Thread, id_hint, time};
use crate::clock::Micros;
use crate::model::{Seq, SessionId, Usage, WireFormat};
use bytes::Bytes;
use lines::Verdict;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};

/// What a thread's messages and records are made from, in the order of the
/// file.
#[derive(Debug)]
enum Event<'a> {
    /// Blocks of an assistant message.
    Assistant {
        line: u64,
        at: Option<Micros>,
        id: Option<Cow<'a, str>>,
        content: &'a str,
        usage: Option<Usage>,
    },
    /// A user message.
    User { line: u64, at: Option<Micros>, message: &'a str, content: &'a str },
    /// A record.
    Meta { line: u64, at: Option<Micros>, payload: Bytes },
}

/// A thread while the file is read.
#[derive(Debug, Default)]
struct Draft<'a> {
    events: Vec<Event<'a>>,
    /// What the file calls it, beside the session's id.
    agent: Option<Cow<'a, str>>,
    /// Whether it is a sub-agent's.
    of_agent: bool,
    /// The call that spawned it, if a line says so.
    call_id: Option<Cow<'a, str>>,
    /// Values that were kept last, by type, of records that the client repeats.
    latest: HashMap<Cow<'a, str>, &'a str>,
    /// Ids of lines with their contents: a resumed session repeats lines.
    seen: HashSet<(Cow<'a, str>, &'a str)>,
}

/// The threads of a session: the main one first, then its sub-agents'.
pub(super) fn threads(file: &File<'_>, pieces: &[Piece<'_>], findings: &mut Findings) -> Vec<Thread> {
    let mut session = Session {
        file,
        findings,
        threads: vec![Draft::default()],
        id: None,
        has_main: pieces.iter().any(is_main_message),
        main_is_taken: false,
        by_agent: HashMap::new(),
        by_line: HashMap::new(),
        agent_calls: HashMap::new(),
        tasks: HashMap::new(),
        prompts: HashMap::new(),
    };
    for piece in pieces {
        session.piece(piece);
    }
    session.finish()
}

/// Whether a line is a message of the main thread. A file without any is a
/// sub-agent's own.
fn is_main_message(piece: &Piece<'_>) -> bool {
    let Piece::Value(raw) = piece else {
        return false;
    };
    Object::parse(raw).is_some_and(|line| {
        !line.is_true("isSidechain") && matches!(line.text("type").as_deref(), Some("user" | "assistant"))
    })
}

struct Session<'f, 'a> {
    file: &'f File<'a>,
    findings: &'f mut Findings,
    threads: Vec<Draft<'a>>,
    id: Option<Cow<'a, str>>,
    has_main: bool,
    /// Whether the first thread of a file without a main one is known.
    main_is_taken: bool,
    by_agent: HashMap<Cow<'a, str>, usize>,
    /// Threads of the lines of sub-agents, by the line's id.
    by_line: HashMap<Cow<'a, str>, usize>,
    /// Calls whose results name an agent.
    agent_calls: HashMap<Cow<'a, str>, Cow<'a, str>>,
    /// Calls that may have spawned a thread: the thread that holds each.
    tasks: HashMap<Cow<'a, str>, usize>,
    /// The same calls by their prompts.
    prompts: HashMap<Cow<'a, str>, VecDeque<Cow<'a, str>>>,
}

impl<'a> Session<'_, 'a> {
    fn piece(&mut self, piece: &Piece<'a>) {
        let number = self.file.line_of_piece(piece);
        match piece {
            Piece::Value(raw) if let Some(line) = Object::parse(raw) => self.line(number, raw, &line),
            _ => {
                self.findings.warn(number, "no JSON object: kept as a record");
                for payload in records(Record::Unread, number, 0, piece.bytes()) {
                    self.record(0, number, None, payload);
                }
            }
        }
    }

    fn line(&mut self, number: u64, raw: &'a str, line: &Object<'a>) {
        if self.id.is_none() {
            self.id = line.text("sessionId").filter(|id| !id.is_empty());
        }
        let thread = self.thread_of(line);
        let (name, verdict) = lines::verdict(line);
        match verdict {
            Verdict::Message if self.message(number, line, thread) => {}
            Verdict::Agent if self.agent_progress(number, line) => {}
            Verdict::Strip | Verdict::Agent => self.findings.strip(&name),
            Verdict::Latest(field) => {
                let kept = self.threads.get_mut(thread).map(|thread| &mut thread.latest);
                let value = line.get(field).unwrap_or_default();
                if kept.is_some_and(|kept| kept.insert(Cow::Owned(name.clone()), value) == Some(value)) {
                    self.findings.strip(&name);
                } else {
                    self.record(thread, number, time(line), self.file.slice(raw));
                }
            }
            Verdict::Record => self.record(thread, number, time(line), self.file.slice(raw)),
            Verdict::Message | Verdict::Unknown => {
                let what = match verdict {
                    Verdict::Message => format!("line of type `{name}` without a message"),
                    _ if name.is_empty() => "line without a type".to_owned(),
                    _ => format!("unknown type `{name}`"),
                };
                self.findings.warn(number, &format!("{what}: kept as a record"));
                self.record(thread, number, time(line), self.file.slice(raw));
            }
        }
    }

    fn record(&mut self, thread: usize, line: u64, at: Option<Micros>, payload: Bytes) {
        if let Some(thread) = self.threads.get_mut(thread) {
            thread.events.push(Event::Meta { line, at, payload });
        }
    }

    /// The thread that a line belongs to.
    fn thread_of(&mut self, line: &Object<'a>) -> usize {
        if !line.is_true("isSidechain") {
            return 0;
        }
        let agent = line.text("agentId");
        let parent = line.text("parentUuid");
        let known = match &agent {
            Some(agent) => self.by_agent.get(agent),
            None => parent.and_then(|parent| self.by_line.get(&parent)),
        };
        let uuid = line.text("uuid");
        let thread = known.copied().unwrap_or_else(|| self.begin_thread(agent.or(uuid.clone())));
        if let Some(uuid) = uuid {
            self.by_line.insert(uuid, thread);
        }
        thread
    }

    fn begin_thread(&mut self, agent: Option<Cow<'a, str>>) -> usize {
        let thread = if self.has_main || self.main_is_taken {
            self.threads.push(Draft::default());
            self.threads.len() - 1
        } else {
            self.main_is_taken = true;
            0
        };
        if let Some(draft) = self.threads.get_mut(thread) {
            draft.of_agent = true;
            draft.agent.clone_from(&agent);
        }
        if let Some(agent) = agent {
            self.by_agent.insert(agent, thread);
        }
        thread
    }

    /// The message of a sub-agent inside a line of progress.
    fn agent_progress(&mut self, number: u64, line: &Object<'a>) -> bool {
        let Some(data) = line.object("data") else {
            return false;
        };
        let (Some(agent), Some(inner)) = (data.text("agentId"), data.object("message")) else {
            return false;
        };
        let thread = match self.by_agent.get(&agent) {
            Some(thread) => *thread,
            None => self.begin_thread(Some(agent)),
        };
        if let Some(draft) = self.threads.get_mut(thread) {
            draft.call_id = draft.call_id.take().or(line.text("parentToolUseID"));
        }
        lines::verdict(&inner).1 == Verdict::Message && self.message(number, &inner, thread)
    }

    /// False if the line holds no message.
    fn message(&mut self, line_number: u64, line: &Object<'a>, thread: usize) -> bool {
        let Some((message, content)) = lines::message_and_content(line) else {
            return false;
        };
        let Some(draft) = self.threads.get_mut(thread) else {
            return false;
        };
        if let Some(uuid) = line.text("uuid")
            && !draft.seen.insert((uuid, content))
        {
            self.findings.strip("repeated line");
            return true;
        }
        let at = time(line);
        let of_user = line.text("type").as_deref() == Some("user");
        if let Some(result) = line.value("toolUseResult") {
            self.findings.strip("toolUseResult");
            self.note_agent(content, result);
        }
        let Some(object) = Object::parse(message) else {
            return false;
        };
        let event = if of_user {
            Event::User { line: line_number, at, message, content }
        } else {
            self.note_tasks(thread, content);
            let usage = lines::usage(&object);
            Event::Assistant { line: line_number, at, id: object.text("id"), content, usage }
        };
        if let Some(draft) = self.threads.get_mut(thread) {
            draft.events.push(event);
        }
        true
    }

    /// Notes the call whose result names an agent.
    fn note_agent(&mut self, content: &'a str, result: &'a str) {
        let agent = Object::parse(result).and_then(|result| result.text("agentId"));
        let call = elements(content)
            .and_then(|blocks| blocks.iter().find_map(|block| Object::parse(block)?.text("tool_use_id")));
        if let (Some(agent), Some(call)) = (agent, call) {
            self.agent_calls.insert(agent, call);
        }
    }

    /// Notes the calls that spawn sub-agents.
    fn note_tasks(&mut self, thread: usize, content: &'a str) {
        for block in elements(content).unwrap_or_default() {
            let task = Object::parse(block)
                .filter(|block| matches!(block.text("name").as_deref(), Some("Task" | "Agent")))
                .and_then(|block| Some((block.text("id")?, block.object("input")?.text("prompt")?)));
            if let Some((call_id, prompt)) = task {
                self.tasks.insert(call_id.clone(), thread);
                self.prompts.entry(prompt).or_default().push_back(call_id);
            }
        }
    }

    fn finish(mut self) -> Vec<Thread> {
        let parents: Vec<_> = (0..self.threads.len()).map(|thread| self.parent(thread)).collect();
        let session = self.id.as_deref();
        let mut threads = Vec::new();
        // Threads of which nothing was kept are none: where each of them is.
        let mut places = Vec::new();
        let mut seqs: HashMap<(usize, String), Seq> = HashMap::new();
        for (index, (draft, parent)) in std::mem::take(&mut self.threads).into_iter().zip(parents).enumerate()
        {
            places.push(threads.len());
            if index > 0 && draft.events.is_empty() {
                continue;
            }
            let id_hint = match &draft.agent {
                Some(agent) if draft.of_agent => agent_id(session, agent),
                _ => session.and_then(id_hint),
            };
            let turns = messages::turns(self.file, draft.events, |call_id, seq| {
                seqs.insert((index, call_id.to_owned()), seq);
            });
            let format = WireFormat::AnthropicMessages;
            threads.push(Thread { id_hint, parent, format, preamble: None, turns });
        }
        for parent in threads.iter_mut().filter_map(|thread| thread.parent.as_mut()) {
            if let ParentThread::Here(index) = &mut parent.thread {
                let call = parent.call_id.clone().map(|call_id| (*index, call_id));
                parent.seq = call.and_then(|call| seqs.get(&call)).copied();
                *index = places.get(*index).copied().unwrap_or_default();
            }
        }
        threads
    }

    /// Where a sub-agent's thread comes from: the call that a line names, else
    /// the next one with the thread's first prompt.
    fn parent(&mut self, thread: usize) -> Option<Parent> {
        let draft = self.threads.get(thread).filter(|draft| draft.of_agent)?;
        if thread == 0 {
            // A sub-agent's own file.
            let session = id_hint(self.id.as_deref()?)?;
            return Some(Parent { thread: ParentThread::Elsewhere(session), call_id: None, seq: None });
        }
        let named = draft.call_id.as_ref().or_else(|| self.agent_calls.get(draft.agent.as_ref()?)).cloned();
        let call_id = named.or_else(|| {
            let prompt = draft.events.iter().find_map(first_prompt)?;
            self.prompts.get_mut(&prompt)?.pop_front()
        });
        let holder = call_id.as_ref().and_then(|call_id| self.tasks.get(call_id));
        Some(Parent {
            thread: ParentThread::Here(holder.copied().unwrap_or_default()),
            call_id: call_id.map(Cow::into_owned),
            seq: None,
        })
    }
}

/// The id of a sub-agent's session, the same for a thread in the main file and
/// for the agent's own file.
fn agent_id(session: Option<&str>, agent: &str) -> Option<SessionId> {
    match session {
        Some(session) => id_hint(&format!("{session}-agent-{agent}")),
        None => id_hint(agent),
    }
}

/// The text of a user message.
fn first_prompt<'a>(event: &Event<'a>) -> Option<Cow<'a, str>> {
    let Event::User { content, .. } = event else {
        return None;
    };
    text(content).or_else(|| elements(content)?.iter().find_map(|block| Object::parse(block)?.text("text")))
}
