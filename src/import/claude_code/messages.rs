//! Messages from the lines of a thread.

use super::Event;
use crate::clock::Micros;
use crate::import::file::File;
use crate::import::json::{Object, array, compose, elements};
use crate::import::turns::{Step, Turns};
use crate::import::{ImportedEntry, ImportedTurn};
use crate::model::{EntryKind, Seq, Usage};
use bytes::Bytes;
use std::borrow::Cow;
use std::collections::HashMap;

/// An assistant message and the user message with the results of its calls.
#[derive(Debug, Default)]
struct Group<'a> {
    /// Raw contents, of a line each.
    contents: Vec<&'a str>,
    usage: Option<Usage>,
    results: Vec<&'a str>,
    /// Other blocks of the lines that hold results.
    beside_results: Vec<&'a str>,
    /// Line and time of the first result.
    answered: Option<(u64, Option<Micros>)>,
}

/// The turns of a thread. `on_call` gets the ids of all calls with the seq of
/// the entry that holds them.
pub(super) fn turns(
    file: &File<'_>,
    events: Vec<Event<'_>>,
    mut on_call: impl FnMut(&str, Seq),
) -> Vec<ImportedTurn> {
    let (mut groups, of_event) = groups(&events);
    let left = assign_results(&events, &of_event, &mut groups);
    let mut turns = Turns::new();
    for ((event, group), left) in events.into_iter().zip(of_event).zip(left) {
        match event {
            Event::Meta { line, at, payload } => {
                turns.push_meta(ImportedEntry { payload, kind: EntryKind::Meta, at, line });
            }
            Event::Assistant { line, at, .. } => {
                // The first line of a message brings all of it.
                let Some(group) = group.and_then(|group| groups.get_mut(group)).map(std::mem::take) else {
                    continue;
                };
                if group.contents.is_empty() {
                    continue;
                }
                push_group(&mut turns, group, line, at, &mut on_call);
            }
            Event::User { line, at, message, content } => {
                let payload = match left {
                    Left::Nothing => continue,
                    Left::All => user_message(file, message, content),
                    Left::Some(blocks) => of_role("user", &array(&blocks)),
                };
                turns.push(Step::Input, message_entry(payload, at, line));
            }
        }
    }
    turns.finish()
}

/// Puts the lines with the same message id together, each with the index of its
/// group. Nothing but results and other records stands between them: an id that
/// comes again after a prompt or another message is another message's.
fn groups<'a>(events: &[Event<'a>]) -> (Vec<Group<'a>>, Vec<Option<usize>>) {
    let mut groups: Vec<Group<'a>> = Vec::new();
    let mut open: Option<&Cow<'a, str>> = None;
    let of_event = events.iter().map(|event| match event {
        Event::Meta { .. } => None,
        Event::User { content, .. } => {
            if !has_results(content) {
                open = None;
            }
            None
        }
        Event::Assistant { id, content, usage, .. } => {
            if open.is_none() || open != id.as_ref() {
                groups.push(Group::default());
                open = id.as_ref();
            }
            let group = groups.last_mut()?;
            group.contents.push(content);
            // It only grows: the last one holds.
            group.usage = usage.clone().or(group.usage.take());
            Some(groups.len() - 1)
        }
    });
    let of_event = of_event.collect();
    (groups, of_event)
}

/// What is left of a user line when the results of known calls are with their
/// messages.
enum Left<'a> {
    All,
    Some(Vec<&'a str>),
    Nothing,
}

/// Gives each group the results of its calls. A result stands mostly after its
/// call, sometimes before, and in a slice of a session without it.
fn assign_results<'a>(
    events: &[Event<'a>],
    of_event: &[Option<usize>],
    groups: &mut [Group<'a>],
) -> Vec<Left<'a>> {
    let mut calls: HashMap<Cow<'a, str>, Vec<usize>> = HashMap::new();
    for (index, group) in groups.iter().enumerate() {
        for id in call_ids(group) {
            calls.entry(id).or_default().push(index);
        }
    }
    let mut newest = 0;
    let assign = |(event, group): (&Event<'a>, &Option<usize>)| {
        newest = group.unwrap_or(newest);
        let Event::User { line, at, content, .. } = event else {
            return Left::All;
        };
        let Some(blocks) = elements(content).filter(|_| has_results(content)) else {
            return Left::All;
        };
        let mut answered = None;
        let (mut others, mut orphans) = (Vec::new(), Vec::new());
        for block in blocks {
            let Some(id) = result_id(block) else {
                others.push(block);
                continue;
            };
            // An id that was used twice: the call before the result.
            let of_call = calls.get(&id).and_then(|indices| {
                indices.iter().rev().find(|index| **index <= newest).or(indices.first()).copied()
            });
            match of_call.and_then(|index| Some((index, groups.get_mut(index)?))) {
                Some((index, group)) => {
                    group.results.push(block);
                    group.answered.get_or_insert((*line, *at));
                    answered = Some(index);
                }
                None => orphans.push(block),
            }
        }
        match answered.and_then(|index| groups.get_mut(index)) {
            None => Left::All,
            Some(group) => {
                group.beside_results.append(&mut others);
                if orphans.is_empty() { Left::Nothing } else { Left::Some(orphans) }
            }
        }
    };
    events.iter().zip(of_event).map(assign).collect()
}

/// The message of a step and the results of its calls.
fn push_group(
    turns: &mut Turns,
    group: Group<'_>,
    line: u64,
    at: Option<Micros>,
    on_call: &mut impl FnMut(&str, Seq),
) {
    let seq = turns.next_seq();
    call_ids(&group).for_each(|id| on_call(&id, seq));
    let payload = match group.contents.as_slice() {
        [content] => of_role("assistant", content),
        contents => {
            let blocks: Vec<String> = contents.iter().flat_map(|content| blocks(content)).collect();
            of_role("assistant", &array(&blocks.iter().map(String::as_str).collect::<Vec<_>>()))
        }
    };
    turns.push(Step::Message, message_entry(payload, at, line));
    if let Some(usage) = group.usage {
        turns.set_usage(usage);
    }
    if let Some((line, at)) = group.answered {
        let blocks = [group.results, group.beside_results].concat();
        turns.push(Step::Within, message_entry(of_role("user", &array(&blocks)), at, line));
    }
}

/// The raw blocks of a content; a string is a block of text.
fn blocks(content: &str) -> Vec<String> {
    match elements(content) {
        Some(blocks) => blocks.into_iter().map(str::to_owned).collect(),
        None => vec![format!("{{\"type\":\"text\",\"text\":{content}}}")],
    }
}

/// A user message as it is, unless the client put more into it than the API
/// takes.
fn user_message(file: &File<'_>, message: &str, content: &str) -> Bytes {
    let is_plain = Object::parse(message).is_some_and(|object| {
        object.text("role").as_deref() == Some("user")
            && object.keys().all(|key| matches!(key, "role" | "content"))
    });
    if is_plain { file.slice(message) } else { of_role("user", content) }
}

fn of_role(role: &str, content: &str) -> Bytes {
    compose(&[("role", &format!("\"{role}\"")), ("content", content)])
}

fn message_entry(payload: Bytes, at: Option<Micros>, line: u64) -> ImportedEntry {
    ImportedEntry { payload, kind: EntryKind::Message, at, line }
}

fn has_results(content: &str) -> bool {
    elements(content).is_some_and(|blocks| blocks.iter().any(|block| result_id(block).is_some()))
}

/// The id of the call that a block answers; none if it is no result. A result
/// without an id answers none that is known.
fn result_id(block: &str) -> Option<Cow<'_, str>> {
    let block = Object::parse(block)?;
    (block.text("type")? == "tool_result").then(|| block.text("tool_use_id").unwrap_or_default())
}

fn call_ids<'a>(group: &Group<'a>) -> impl Iterator<Item = Cow<'a, str>> {
    let blocks = group.contents.iter().flat_map(|content| elements(content).unwrap_or_default());
    blocks.filter_map(|block| {
        let block = Object::parse(block)?;
        if block.text("type")? == "tool_use" { block.text("id") } else { None }
    })
}
