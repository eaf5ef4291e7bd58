//! Offloading a tool output: it is kept whole, and a preview stands for it.

mod destination;

use super::{Engine, Error, compute, keys};
use crate::codec::digest;
use crate::codec::output::{About, Writer};
use crate::limits::{JOURNAL_SESSION_BYTES_MAX, OFFLOAD_TIMEOUT, OUTPUT_LABEL_BYTES_MAX};
use crate::model::{BranchId, Digest, GenerationId, Output, OutputId, OutputName, ToolResultLimit};
use crate::preview::{Measure as _, Options as PreviewOptions, Preview, Scanner, ToolResult};
use crate::store::ErrorKind;
use crate::store::meta::{NewOutput, SessionKey};
use crate::tokens::TokenCounter;
use crate::tokens::provider_limits::tool_result_limit;
use bytes::Bytes;
use destination::Destination;

/// A tool output that is to be offloaded.
#[derive(Clone, Debug)]
pub struct OffloadRequest {
    /// The session.
    pub key: SessionKey,
    /// The call of which it is the result.
    pub tool_call_id: String,
    /// The tool.
    pub tool_name: String,
    /// Media type of the content.
    pub content_type: String,
    /// The longest that the text of the preview may be, if less than what the
    /// session's limit leaves, in the limit's unit.
    pub preview_length_max: Option<u64>,
    /// Share of the preview that the beginning gets, in percent.
    pub head_percent: Option<u8>,
}

/// What became of a tool output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offloaded {
    /// It is short enough to be the tool result itself; nothing was stored.
    Inline {
        /// Length of the message with it, in the limit's unit.
        length: u64,
        /// The longest that it may be.
        length_max: u64,
    },
    /// It is kept.
    Stored {
        /// The output.
        output: Box<Output>,
        /// Its name.
        name: OutputName,
        /// What stands for it in the transcript.
        preview: Preview,
    },
}

/// An output that comes in. Nothing is seen of it before [`Offload::commit`], and
/// nothing ever if it is dropped before.
#[derive(Debug)]
pub struct Offload {
    engine: Engine,
    request: OffloadRequest,
    branch: BranchId,
    limit: ToolResultLimit,
    /// The message without the output.
    result: ToolResult,
    bytes: u64,
    body: Body,
}

#[derive(Debug)]
enum Body {
    /// All of it, while it may be short enough.
    Short(Vec<u8>),
    Long(Box<Long>),
}

/// An output on its way to the object store, or what is kept of it in its place.
#[derive(Debug)]
struct Long {
    /// None while it is used and once that has failed.
    encoder: Option<Encoder>,
    destination: Destination,
    key: String,
    generation: GenerationId,
    name: OutputName,
}

#[derive(Debug)]
struct Encoder {
    writer: Writer<Vec<u8>>,
    scanner: Scanner,
}

impl Engine {
    /// Begins to take in a tool output.
    pub async fn begin_offload(&self, request: OffloadRequest) -> Result<Offload, Error> {
        for (field, label) in [
            ("tool_call_id", &request.tool_call_id),
            ("tool_name", &request.tool_name),
            ("content_type", &request.content_type),
        ] {
            check_label(field, label)?;
        }
        if request.head_percent.is_some_and(|percent| percent > 100) {
            return Err(Error::invalid("head_percent", "must be from 0 to 100"));
        }
        let tip = self.tip(&request.key, None).await?;
        let limit = tool_result_limit(&tip.session.profile);
        let counter = TokenCounter::new(tip.session.format, tip.session.tokenizer());
        let result = ToolResult::new(
            tip.session.format,
            &request.tool_call_id,
            &request.tool_name,
            limit.unit,
            counter,
        );
        Ok(Offload {
            engine: self.clone(),
            request,
            branch: tip.head.branch,
            limit,
            result,
            bytes: 0,
            body: Body::Short(Vec::new()),
        })
    }
}

/// A label is stored as text and shown in lists.
fn check_label(field: &str, label: &str) -> Result<(), Error> {
    if label.len() > OUTPUT_LABEL_BYTES_MAX {
        let problem = format!("has {} bytes; at most {OUTPUT_LABEL_BYTES_MAX} are allowed", label.len());
        return Err(Error::invalid(field, problem));
    }
    if label.contains(char::is_control) {
        return Err(Error::invalid(field, "holds a control character"));
    }
    Ok(())
}

impl Offload {
    /// Takes in the next part, of any size. After a failure only failures follow.
    pub async fn write(&mut self, part: Bytes) -> Result<(), Error> {
        self.bytes += part.len() as u64;
        let limit = self.engine.inner.options.output_bytes_max;
        if self.bytes > limit {
            return Err(Error::OutputTooLarge { limit });
        }
        if let Body::Short(known) = &mut self.body {
            if self.bytes <= self.result.content_bytes_max(self.limit.length_max_of_text()) {
                known.extend_from_slice(&part);
                return Ok(());
            }
            self.begin_upload().await?;
        }
        match &mut self.body {
            Body::Long(long) => long.write(&self.engine, part).await,
            Body::Short(_) => Err(Error::internal("an output is not on its way")),
        }
    }

    /// Begins to put the output, with what is known of it so far.
    async fn begin_upload(&mut self) -> Result<(), Error> {
        let Body::Short(known) = &mut self.body else { return Ok(()) };
        let known = Bytes::from(std::mem::take(known));
        let Engine { inner } = &self.engine;
        let output = OutputId::parse(&inner.entropy.id(inner.clock.now()))
            .map_err(|_| Error::internal("mint an output's id"))?;
        let generation = inner.generation.current();
        let tenant = &self.request.key.tenant;
        let key = keys::output(&inner.entropy, tenant, &self.branch, &output, generation);
        let destination = Destination::begin(&self.engine, &key).await?;
        let writer = Writer::new(Vec::new()).map_err(encoding)?;
        let shown_max = self.limit.length_max_of_text().saturating_mul(self.result.escaped_per_unit());
        let scanner = Scanner::new(usize::try_from(shown_max).unwrap_or(usize::MAX));
        let name = OutputName { session: self.request.key.session.clone(), output };
        let encoder = Some(Encoder { writer, scanner });
        let mut long = Box::new(Long { encoder, destination, key, generation, name });
        long.write(&self.engine, known).await?;
        self.body = Body::Long(long);
        Ok(())
    }

    /// Ends the output, which must have so many bytes and that SHA-256. If it is
    /// too long for a tool result it is stored, and durable when this returns.
    pub async fn commit(mut self, bytes: u64, sha256: Digest) -> Result<Offloaded, Error> {
        if bytes != self.bytes {
            return Err(Error::invalid("commit.bytes", format!("is {bytes}, but {} came", self.bytes)));
        }
        if let Body::Short(content) = &mut self.body {
            let (content, result) = (std::mem::take(content), self.result.clone());
            let (found, length, content) = compute(content.len(), move || {
                (digest::sha256(&content), result.length_of_content(&content), content)
            })
            .await?;
            check_digest(sha256, found)?;
            let length_max = self.limit.length_max_of_text();
            if length <= length_max {
                return Ok(Offloaded::Inline { length, length_max });
            }
            self.body = Body::Short(content);
            self.begin_upload().await?;
        }
        let Self { engine, request, limit, result, body, .. } = self;
        let Body::Long(long) = body else { return Err(Error::internal("an output is not on its way")) };
        let finishing = engine.clone();
        engine.detached(async move { long.finish(&finishing, request, limit, result, sha256).await }).await
    }
}

fn check_digest(expected: Digest, found: Digest) -> Result<(), Error> {
    if expected == found {
        return Ok(());
    }
    Err(Error::invalid("commit.sha256", format!("is {expected}, but what came has {found}")))
}

impl Long {
    async fn write(&mut self, engine: &Engine, part: Bytes) -> Result<(), Error> {
        let mut encoder = self.encoder.take().ok_or_else(|| Error::internal("an output is broken"))?;
        let encoded = compute(part.len(), move || {
            encoder.scanner.push(&part);
            encoder.writer.push(&part)?;
            let stored = std::mem::take(encoder.writer.get_mut());
            Ok((encoder, stored))
        });
        let (encoder, stored) = encoded.await?.map_err(encoding)?;
        if !stored.is_empty() {
            self.destination.write(engine, stored.into()).await?;
        }
        self.encoder = Some(encoder);
        Ok(())
    }

    async fn finish(
        self: Box<Self>,
        engine: &Engine,
        request: OffloadRequest,
        limit: ToolResultLimit,
        result: ToolResult,
        sha256: Digest,
    ) -> Result<Offloaded, Error> {
        let Self { encoder, mut destination, key, generation, name } = *self;
        let Encoder { writer, scanner } = encoder.ok_or_else(|| Error::internal("an output is broken"))?;
        // The session may have gone on since the first byte came.
        let head = engine.tip(&request.key, None).await?.head;
        let about = About {
            tenant: request.key.tenant.clone(),
            session: request.key.session.clone(),
            branch: head.branch,
            version: head.version,
            output: name.output.clone(),
            tool_call_id: request.tool_call_id.clone(),
            tool_name: request.tool_name.clone(),
            content_type: request.content_type.clone(),
            bytes: 0,
            characters: scanner.totals().characters,
            lines: 0,
            sha256: Digest::default(),
            created_at: engine.now(),
            entry: None,
        };
        let (rest, summary) = writer.finish(about.clone()).map_err(encoding)?;
        check_digest(sha256, summary.raw_sha256)?;
        let preview = make_preview(&request, limit, result, scanner, name.storage_ref()).await?;
        destination.write(engine, rest.into()).await?;
        let held = destination.finish(engine, &summary).await?;
        let output = summary.output(about, held.is_none().then_some(key));
        let journal_bytes_max = JOURNAL_SESSION_BYTES_MAX;
        let new = NewOutput { key: request.key, output, held, journal_bytes_max, generation };
        let output = engine.add_output(new).await?;
        metrics::counter!("turnkeep_outputs_total").increment(1);
        metrics::counter!("turnkeep_output_raw_bytes_total").increment(output.bytes);
        Ok(Offloaded::Stored { output: Box::new(output), name, preview })
    }
}

async fn make_preview(
    request: &OffloadRequest,
    limit: ToolResultLimit,
    result: ToolResult,
    scanner: Scanner,
    reference: String,
) -> Result<Preview, Error> {
    let wanted = request.preview_length_max.or(limit.preview_length);
    let wanted = wanted.map_or(u64::MAX, |wanted| wanted.saturating_add(result.envelope()));
    let length_max = limit.length_max_of_text().min(wanted);
    let head_percent = request.head_percent.unwrap_or(limit.head_percent());
    let made = compute(usize::MAX, move || {
        let options = PreviewOptions { length_max, measure: &result, head_percent, reference: &reference };
        scanner.finish().preview(&options)
    });
    made.await?.ok_or_else(|| {
        let problem = format!("a message of {length_max} leaves no room for a preview with its ref");
        // The one that is the smaller is to blame.
        let field = if length_max < limit.length_max_of_text() {
            "preview_length_max"
        } else {
            "profile.tool_result_limit"
        };
        Error::invalid(field, problem)
    })
}

impl Engine {
    /// Writes the row of an output.
    async fn add_output(&self, new: NewOutput) -> Result<Output, Error> {
        let mut is_in_doubt = false;
        loop {
            return match self.inner.meta.add_output(new.clone()).await {
                Ok(Some(output)) => Ok(output),
                Ok(None) => Err(self.why_not_added(new).await),
                // Once more: it waits for the first and finds what that wrote.
                Err(error) if error.kind == ErrorKind::Unknown && !is_in_doubt => {
                    is_in_doubt = true;
                    continue;
                }
                Err(error) if error.kind == ErrorKind::Duplicate && is_in_doubt => {
                    let found = self.inner.meta.output(&new.key, &new.output.id).await;
                    let found = found.map_err(|error| Error::from(error).after_write())?;
                    found.ok_or_else(|| Error::SessionNotFound { session: new.key.session })
                }
                // It took longer than a generation lives.
                Err(error) if error.kind == ErrorKind::Fenced => {
                    let (meta, now) = (self.inner.meta.as_ref(), self.now());
                    self.inner.generation.replace_fenced(meta, new.generation, now).await?;
                    tracing::warn!(limit = ?OFFLOAD_TIMEOUT, "an output came too slowly to be kept");
                    Err(Error::DeadlineExceeded)
                }
                Err(error) => Err(error.into()),
            };
        }
    }
}

impl Engine {
    /// Why an output was not added.
    async fn why_not_added(&self, new: NewOutput) -> Error {
        let session = new.key.session.clone();
        match (self.tip(&new.key, None).await, new.held) {
            (Err(error), _) => error,
            (Ok(tip), Some(held)) => {
                let bytes = tip.head.journal_bytes.saturating_add(held.len() as u64);
                Error::JournalFull { session, bytes, limit: new.journal_bytes_max }
            }
            (Ok(_), None) => Error::SessionNotFound { session },
        }
    }
}

fn encoding(error: std::io::Error) -> Error {
    Error::Internal { context: "encode an output".to_owned(), source: Some(error.into()) }
}
