//! Tool results of a turn that are too long, and pictures and documents that are too
//! large: each is kept whole as a tool output, and a text takes its place.

use super::Base;
use super::commit::AttemptError;
use super::prepared::{Prepared, PreparedRequest};
use super::request::PersistRequest;
use crate::codec::digest;
use crate::codec::output::{About, Writer};
use crate::engine::{Engine, Error, compute, keys};
use crate::format::{self, CallTracker, Pushed, Reading};
use crate::limits::OUTPUT_LABEL_BYTES_MAX;
use crate::model::{
    BranchId, ChangedEntry, Digest, GenerationId, MediaLimits, Output, OutputId, OutputName, Session,
    ToolResultLimit, Version, WireFormat,
};
use crate::preview::{
    no_media_can_be_oversized, no_result_can_be_oversized, oversized_media, oversized_results,
};
use crate::store::StoreError;
use crate::store::meta::{SessionKey, Tip, TurnOutput};
use crate::tokens::TokenCounter;
use crate::tokens::provider_limits::{media_limits, tool_result_limit};
use crate::window::Message;
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use std::borrow::Cow;
use std::collections::HashMap;

/// Outputs of one turn that are put at the same time.
const PUTS: usize = 4;

/// An entry with previews in place of results, and what they stand for.
struct Changed {
    payload: Bytes,
    outputs: Vec<(TurnOutput, Blob)>,
}

#[derive(Clone)]
struct Blob {
    key: String,
    body: Bytes,
    sha256: Digest,
}

/// Where outputs are put.
#[derive(Clone)]
struct Place {
    key: SessionKey,
    branch: BranchId,
    /// The session's.
    version: Version,
    generation: GenerationId,
}

impl Engine {
    /// Puts results of new entries that are too long into the object store and
    /// their previews into the entries. If the object store fails, what is left is to
    /// be held in the metadata store: a turn does not depend on it.
    pub(super) async fn offload_results(
        &self,
        request: &PersistRequest,
        tip: &Tip,
        base: &Base,
        prepared: &mut PreparedRequest,
    ) -> Result<(), AttemptError> {
        let new = prepared.entries.get_mut(base.known..).unwrap_or_default();
        let limits = Limits::of(&tip.session);
        if request.keep_tool_results || new.iter().all(|entry| limits.allow(entry)) {
            return Ok(());
        }
        let branch = base.branch.as_ref().map_or(&tip.head.branch, |branch| &branch.id).clone();
        let generation = self.inner.generation.current();
        let place = Place { key: request.key.clone(), branch, version: tip.head.version, generation };
        let mut calls = CallTracker::new(tip.session.format, base.turn.calls.clone());
        let mut seq = base.turn.last_seq;
        let mut is_down = false;
        for entry in new {
            seq = seq.next();
            let Some(message) = &entry.message else { continue };
            let reading = message.reading();
            let tools = Tools::of(reading, &calls.push(seq, reading));
            if entry.is_checked {
                // The call came to the log only after an attempt before.
                if entry.outputs.iter().any(|output| tools.name_anew(&output.output)) {
                    return Err(AttemptError::OutputsOutdated);
                }
                continue;
            }
            let (engine, session, place) = (self.clone(), tip.session.clone(), place.clone());
            let payload = entry.payload.clone();
            let changed =
                compute(payload.len(), move || change(&engine, &session, limits, &place, &tools, &payload));
            if let Some(changed) = changed.await?? {
                // A retry neither puts them again nor needs the object store.
                self.check_new(&request.key, &request.request_id).await?;
                // Whoever has waited once for a store that is down does not again.
                if !is_down {
                    match self.put_outputs(&changed).await {
                        Ok(()) => {}
                        Err(error) if self.may_hold(&error) => {
                            tracing::warn!(session = %request.key.session, error = %error, "tool outputs are held");
                            is_down = true;
                        }
                        Err(error) => return Err(Error::of_objects(error).into()),
                    }
                }
                self.exchange(&tip.session, entry, changed, is_down).await?;
            }
            entry.is_checked = true;
        }
        Ok(())
    }

    async fn put_outputs(&self, changed: &Changed) -> Result<(), StoreError> {
        let blobs: Vec<_> = changed.outputs.iter().map(|(_, blob)| blob.clone()).collect();
        let put = |blob: Blob| async move { self.put_blob(&blob.key, blob.body, blob.sha256).await };
        stream::iter(blobs).map(put).buffer_unordered(PUTS).try_collect().await
    }

    /// Gives an entry its new payload, and the outputs, whose blobs are put or to be
    /// held. What it is compared by stays as it came in.
    async fn exchange(
        &self,
        session: &Session,
        entry: &mut Prepared,
        changed: Changed,
        is_held: bool,
    ) -> Result<(), Error> {
        let Changed { payload, outputs } = changed;
        let (format, counter) = (session.format, TokenCounter::new(session.format, session.tokenizer()));
        entry.payload = payload.clone();
        let read = move || (digest::sha256(&payload), Message::counted(format, counter, &payload));
        let (sha256, (tokens, message)) = compute(entry.payload.len(), read).await?;
        (entry.sha256, entry.tokens, entry.message) = (sha256, tokens, Some(message));
        let hold = |(output, blob): (TurnOutput, Blob)| TurnOutput {
            output: Output { key: None, ..output.output },
            held: Some(blob.body),
            ..output
        };
        entry.outputs = if is_held {
            outputs.into_iter().map(hold).collect()
        } else {
            outputs.into_iter().map(|(output, _)| output).collect()
        };
        Ok(())
    }
}

/// What applies to tool results, pictures and documents of a session.
#[derive(Clone, Copy)]
struct Limits {
    results: ToolResultLimit,
    media: MediaLimits,
}

impl Limits {
    fn of(session: &Session) -> Self {
        let profile = &session.profile;
        Self { results: tool_result_limit(profile), media: media_limits(profile, session.format) }
    }

    /// Whether an entry is so short that nothing in it can exceed them, which needs no look
    /// at what is in it. Most are.
    fn allow(&self, entry: &Prepared) -> bool {
        let (payload, is_new) = (&entry.payload, entry.outputs.is_empty());
        is_new
            && no_result_can_be_oversized(payload, self.results)
            && no_media_can_be_oversized(payload, self.media)
    }
}

/// Names of the tools whose results an entry has, by the ids of the calls that they
/// answer.
struct Tools(HashMap<String, String>);

impl Tools {
    /// Those of an entry, which did `pushed` to the calls that wait.
    fn of(reading: &Reading<'_>, pushed: &Pushed) -> Self {
        let mut names = HashMap::new();
        for (result, answer) in reading.results.iter().zip(&pushed.answers) {
            if let (Some(id), Some(answer)) = (&result.id, answer) {
                names.entry(id.to_string()).or_insert_with(|| answer.call.name.clone());
            }
        }
        Self(names)
    }

    /// Labels of a value: the id of its call, the name of its tool as the result gives
    /// it or else the call, and its media type.
    fn labels(&self, call_id: &str, tool_name: &str, content_type: &str) -> [String; 3] {
        let of_call = || self.0.get(call_id).map_or("", String::as_str);
        let tool_name = if tool_name.is_empty() { of_call() } else { tool_name };
        [call_id, tool_name, content_type].map(label)
    }

    /// Whether an output has no name of its tool and would have one now.
    fn name_anew(&self, output: &Output) -> bool {
        let name = || self.0.get(&output.tool_call_id);
        output.tool_name.is_empty() && name().is_some_and(|name| !label(name).is_empty())
    }
}

/// A value that is to be kept as an output.
struct Found<'a> {
    id: OutputId,
    /// Id of its call, name of its tool, and its media type.
    labels: [String; 3],
    content: Cow<'a, [u8]>,
}

/// The entry with texts in place of media that are too large, and then with previews in
/// place of results that are too long; nothing if there are none.
fn change(
    engine: &Engine,
    session: &Session,
    limits: Limits,
    place: &Place,
    tools: &Tools,
    payload: &Bytes,
) -> Result<Option<Changed>, Error> {
    let counter = TokenCounter::new(session.format, session.tokenizer());
    let mut found = Vec::new();
    let texts = without_media(engine, session.format, limits.media, place, tools, payload, &mut found)?;
    let mut values = Vec::new();
    let all = oversized_results(session.format, &texts, limits.results, counter);
    for oversized in &all {
        let name = new_name(engine, place)?;
        let content = oversized.content();
        // A limit so small leaves nothing to show.
        let Some((_, value)) = oversized.replaced(&content, &name.storage_ref()) else {
            continue;
        };
        values.push((oversized.place(), value));
        let labels = tools.labels(oversized.call_id(), oversized.tool_name(), oversized.content_type());
        found.push(Found { id: name.output, labels, content });
    }
    if found.is_empty() {
        return Ok(None);
    }
    let changed = Bytes::from(format::with_values(&texts, &values));
    let entry = ChangedEntry {
        stored: format::canonical_digest(&changed),
        received: format::canonical_digest(payload),
    };
    let outputs =
        found.into_iter().map(|found| output(engine, place, found, entry)).collect::<Result<_, _>>()?;
    Ok(Some(Changed { payload: changed, outputs }))
}

/// The entry with texts in place of pictures and documents that are too large.
fn without_media(
    engine: &Engine,
    format: WireFormat,
    limits: MediaLimits,
    place: &Place,
    tools: &Tools,
    payload: &Bytes,
    found: &mut Vec<Found<'_>>,
) -> Result<Bytes, Error> {
    let all = oversized_media(format, payload, limits);
    if all.is_empty() {
        return Ok(payload.clone());
    }
    let mut values = Vec::with_capacity(all.len());
    for media in all {
        let name = new_name(engine, place)?;
        values.push((media.place(), media.replaced(&name.storage_ref())));
        let labels = tools.labels(media.call_id(), media.tool_name(), media.content_type());
        let content = Cow::Owned(media.content());
        found.push(Found { id: name.output, labels, content });
    }
    Ok(format::with_values(payload, &values).into())
}

fn new_name(engine: &Engine, place: &Place) -> Result<OutputName, Error> {
    let output = OutputId::parse(&engine.inner.entropy.id(engine.inner.clock.now()))
        .map_err(|_| Error::internal("mint an output's id"))?;
    Ok(OutputName { session: place.key.session.clone(), output })
}

fn output(
    engine: &Engine,
    place: &Place,
    found: Found<'_>,
    entry: ChangedEntry,
) -> Result<(TurnOutput, Blob), Error> {
    let encoding = |error: std::io::Error| Error::Internal {
        context: "encode an output".to_owned(),
        source: Some(error.into()),
    };
    let Found { id, labels: [tool_call_id, tool_name, content_type], content } = found;
    let mut writer = Writer::new(Vec::new()).map_err(encoding)?;
    writer.push(&content).map_err(encoding)?;
    let about = About {
        tenant: place.key.tenant.clone(),
        session: place.key.session.clone(),
        branch: place.branch.clone(),
        version: place.version,
        output: id.clone(),
        tool_call_id,
        tool_name,
        content_type,
        bytes: 0,
        characters: content.iter().filter(|byte| **byte & 0xc0 != 0x80).count() as u64,
        lines: 0,
        sha256: Digest::default(),
        created_at: engine.now(),
        entry: Some(entry),
    };
    let (body, summary) = writer.finish(about.clone()).map_err(encoding)?;
    let key = keys::output(&engine.inner.entropy, &place.key.tenant, &place.branch, &id, place.generation);
    let output = summary.output(about, Some(key.clone()));
    let output = TurnOutput { output, held: None, generation: place.generation };
    Ok((output, Blob { key, body: body.into(), sha256: summary.stored_sha256 }))
}

/// As much of a name as a label may have.
fn label(name: &str) -> String {
    let mut label = String::new();
    for char in name.chars().filter(|char| !char.is_control()) {
        if label.len() + char.len_utf8() > OUTPUT_LABEL_BYTES_MAX {
            break;
        }
        label.push(char);
    }
    label
}
