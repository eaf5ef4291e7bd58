//! `ToolOutputService`.

use super::observe::{observe, observe_within};
use super::{convert, pages, pb};
use crate::clock;
use crate::engine::{
    Engine, Error, FoundLine, Offload, OffloadRequest, Offloaded, OutputPart, OutputPiece, OutputRange,
    PageSize, Pattern, ReadOutput, SearchOutput, SearchPart,
};
use crate::limits::{
    OFFLOAD_IDLE_TIMEOUT, OFFLOAD_TIMEOUT, OFFLOADS_MAX, OUTPUT_MATCHES_DEFAULT, OUTPUT_PAGE_BYTES_MAX,
    STREAM_CHUNK_BYTES,
};
use crate::model::{Digest, Output, OutputName, TenantId};
use futures::stream::{self, Stream, StreamExt as _};
use pb::offload_tool_output_request::{Commit, Frame, Start};
use pb::read_tool_output_response::{Content, End, Line, Lines, Part};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status, Streaming};

/// Memory that an offload takes, about.
const OFFLOAD_BYTES: u64 = 20 << 20;

/// How long an offload waits for others to end.
const OFFLOAD_WAIT: Duration = Duration::from_secs(5);

/// `ToolOutputService` over an engine.
#[derive(Debug, Clone)]
pub struct ToolOutputs {
    engine: Engine,
    tenant: TenantId,
    offloads: Arc<Semaphore>,
}

type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl ToolOutputs {
    /// The service, for one tenant.
    pub fn new(engine: Engine, tenant: TenantId) -> Self {
        Self { engine, tenant, offloads: Arc::new(Semaphore::new(OFFLOADS_MAX)) }
    }

    async fn offload(
        &self,
        mut frames: Streaming<pb::OffloadToolOutputRequest>,
    ) -> Result<pb::OffloadToolOutputResponse, Error> {
        let permit = clock::deadline(OFFLOAD_WAIT, self.offloads.acquire()).await;
        let Some(Ok(_permit)) = permit else {
            metrics::counter!("turnkeep_overloaded_total").increment(1);
            return Err(Error::Overloaded { limit: OFFLOADS_MAX as u64 * OFFLOAD_BYTES });
        };
        let Frame::Start(start) = next(&mut frames).await? else {
            return Err(Error::invalid("start", "must come first"));
        };
        let mut offload = self.begin(start).await.map_err(|error| error.within("start"))?;
        loop {
            match next(&mut frames).await? {
                Frame::Start(_) => return Err(Error::invalid("start", "must come only once")),
                Frame::Data(data) => offload.write(data).await?,
                Frame::Commit(Commit { bytes, sha256 }) => {
                    let sha256 = Digest::from_slice(&sha256)
                        .ok_or_else(|| Error::invalid("commit.sha256", "must have 32 bytes"))?;
                    let offloaded = offload.commit(bytes, sha256).await;
                    return Ok(offload_answer(offloaded?));
                }
            }
        }
    }

    async fn begin(&self, start: Start) -> Result<Offload, Error> {
        let head_percent = start.head_percent.map(|percent| u8::try_from(percent).unwrap_or(u8::MAX));
        let request = OffloadRequest {
            key: convert::session_key(&self.tenant, "session", &start.session)?,
            tool_call_id: start.tool_call_id,
            tool_name: start.tool_name,
            content_type: start.content_type,
            preview_length_max: start.preview_length_max,
            head_percent,
        };
        self.engine.begin_offload(request).await
    }

    async fn read(
        &self,
        mut request: pb::ReadToolOutputRequest,
    ) -> Result<Messages<pb::ReadToolOutputResponse>, Error> {
        use pb::read_tool_output_request::Part as Wanted;
        let name = output_name(&request.name)?;
        let (output, parts) = match request.part.take() {
            Some(Wanted::Search(search)) => {
                if request.page_bytes.is_some() {
                    return Err(Error::invalid("page_bytes", "is not for searches"));
                }
                let matches_max =
                    if search.matches_max == 0 { OUTPUT_MATCHES_DEFAULT } else { search.matches_max };
                let search = SearchOutput {
                    tenant: self.tenant.clone(),
                    name: name.clone(),
                    pattern: Pattern {
                        source: search.pattern,
                        is_regex: search.is_regex,
                        ignore_case: search.ignore_case,
                    },
                    context_lines: search.context_lines,
                    matches_max,
                    first_line: search.first_line,
                    is_unlimited: request.unlimited,
                };
                let (output, parts) = self.engine.search_output(search).await?;
                (output, parts.flat_map(|part| messages(part, found)).boxed())
            }
            part => {
                let range = match part {
                    None => OutputRange::Bytes { start: 0, count: None },
                    Some(Wanted::Bytes(range)) => {
                        OutputRange::Bytes { start: range.start, count: range.count }
                    }
                    Some(Wanted::Lines(range)) => {
                        OutputRange::Lines { start: range.start, count: range.count }
                    }
                    Some(Wanted::HeadLines(count)) => OutputRange::Lines { start: 1, count: Some(count) },
                    // Of none the place is after the last.
                    Some(Wanted::TailLines(0)) => OutputRange::Lines { start: i64::MAX, count: Some(0) },
                    Some(Wanted::TailLines(count)) => {
                        let start = i64::try_from(count).map_or(i64::MIN, |count| -count);
                        OutputRange::Lines { start, count: None }
                    }
                    Some(Wanted::Search(_)) => return Err(Error::internal("a search is no range")),
                };
                let page = page_size(&request)?;
                let read = ReadOutput { tenant: self.tenant.clone(), name: name.clone(), range, page };
                let (output, parts) = self.engine.read_output(read).await?;
                (output, parts.flat_map(|part| messages(part, content)).boxed())
            }
        };
        let header = stream::iter([Ok(Part::Output(tool_output(&name, output)))]);
        let messages =
            header.chain(parts).map(|part| part.map(|part| pb::ReadToolOutputResponse { part: Some(part) }));
        Ok(messages.boxed())
    }

    async fn list(&self, request: pb::ListToolOutputsRequest) -> Result<pb::ListToolOutputsResponse, Error> {
        let key = convert::session_key(&self.tenant, "parent", &request.parent)?;
        let before = pages::read_output_token(&request.page_token)?;
        let limit = pages::page_size(request.page_size)?;
        let page = self.engine.list_outputs(&key, before.as_ref(), limit).await?;
        let next_page_token = match page.outputs.last() {
            Some(last) if page.more => pages::output_token(&last.id),
            _ => String::new(),
        };
        let name = |output: &Output| OutputName { session: key.session.clone(), output: output.id.clone() };
        let outputs = page.outputs.into_iter().map(|output| tool_output(&name(&output), output)).collect();
        Ok(pb::ListToolOutputsResponse { outputs, next_page_token })
    }
}

/// The next message of an offload.
async fn next(frames: &mut Streaming<pb::OffloadToolOutputRequest>) -> Result<Frame, Error> {
    let Some(message) = clock::deadline(OFFLOAD_IDLE_TIMEOUT, frames.message()).await else {
        return Err(Error::DeadlineExceeded);
    };
    match message {
        Ok(Some(message)) => {
            message.frame.ok_or_else(|| Error::invalid("frame", "must be set: `start`, `data` or `commit`"))
        }
        Ok(None) => Err(Error::invalid("commit", "must come before the stream ends; nothing was kept")),
        Err(_) => Err(Error::invalid(
            "frame",
            "could not be read: the stream broke off, or a message is no such frame or larger than 4 MiB",
        )),
    }
}

fn output_name(name: &str) -> Result<OutputName, Error> {
    OutputName::parse(name).map_err(|problem| Error::invalid("name", problem.to_string()))
}

fn page_size(request: &pb::ReadToolOutputRequest) -> Result<PageSize, Error> {
    match request.page_bytes {
        Some(_) if request.unlimited => {
            Err(Error::invalid("page_bytes", "cannot be combined with `unlimited`"))
        }
        Some(bytes) => match usize::try_from(bytes) {
            Ok(bytes) if (1..=OUTPUT_PAGE_BYTES_MAX).contains(&bytes) => Ok(PageSize::Bytes(bytes)),
            _ => Err(Error::invalid(
                "page_bytes",
                format!("is {bytes}; must be from 1 to {OUTPUT_PAGE_BYTES_MAX}"),
            )),
        },
        None if request.unlimited => Ok(PageSize::Unlimited),
        None => Ok(PageSize::ToolResult),
    }
}

fn tool_output(name: &OutputName, output: Output) -> pb::ToolOutput {
    pb::ToolOutput {
        name: name.resource_name(),
        r#ref: name.storage_ref(),
        tool_call_id: output.tool_call_id,
        tool_name: output.tool_name,
        content_type: output.content_type,
        bytes: output.bytes,
        characters: output.characters,
        lines: output.lines,
        sha256: output.sha256.0.to_vec().into(),
        stored_bytes: output.stored_bytes,
        create_time: Some(convert::timestamp(output.created_at)),
    }
}

fn offload_answer(offloaded: Offloaded) -> pb::OffloadToolOutputResponse {
    use pb::offload_tool_output_response::{Inline, Outcome, Stored};
    let outcome = match offloaded {
        Offloaded::Inline { length, length_max } => Outcome::Inline(Inline { length, length_max }),
        Offloaded::Stored { output, name, preview } => Outcome::Stored(Stored {
            output: Some(tool_output(&name, *output)),
            preview: preview.text,
            omitted_bytes: preview.omitted.bytes,
            omitted_lines: preview.omitted.lines,
        }),
    };
    pb::OffloadToolOutputResponse { outcome: Some(outcome) }
}

/// The messages of a part of an answer.
fn messages<P>(
    part: Result<P, Error>,
    convert: impl FnOnce(P) -> Vec<Part>,
) -> impl Stream<Item = Result<Part, Status>> {
    stream::iter(match part {
        Ok(part) => convert(part).into_iter().map(Ok).collect(),
        Err(error) => vec![Err(super::to_status(&error))],
    })
}

fn content(part: OutputPart) -> Vec<Part> {
    vec![match part {
        OutputPart::Piece(OutputPiece { byte, line, bytes }) => {
            Part::Content(Content { data: bytes, first_byte: byte, first_line: line })
        }
        OutputPart::End(next) => Part::End(End {
            is_complete: next.is_none(),
            next_byte: next.map(|next| next.byte),
            next_line: next.map(|next| next.line),
        }),
    }]
}

fn found(part: SearchPart) -> Vec<Part> {
    let lines = match part {
        SearchPart::Lines(lines) => lines,
        SearchPart::End(next_line) => {
            return vec![Part::End(End { is_complete: next_line.is_none(), next_byte: None, next_line })];
        }
    };
    let mut parts = Vec::new();
    let (mut chunk, mut bytes) = (Vec::new(), 0);
    for FoundLine { line, byte, text, is_match, is_cut } in lines {
        // With the numbers and what is around them.
        bytes += text.len() + 48;
        if bytes > STREAM_CHUNK_BYTES && !chunk.is_empty() {
            parts.push(Part::Lines(Lines { lines: std::mem::take(&mut chunk) }));
            bytes = text.len() + 48;
        }
        chunk.push(Line { line, first_byte: byte, text, is_match, is_cut });
    }
    parts.push(Part::Lines(Lines { lines: chunk }));
    parts
}

#[tonic::async_trait]
impl pb::tool_output_service_server::ToolOutputService for ToolOutputs {
    async fn offload_tool_output(
        &self,
        request: Request<Streaming<pb::OffloadToolOutputRequest>>,
    ) -> Result<Response<pb::OffloadToolOutputResponse>, Status> {
        let offload = Box::pin(self.offload(request.into_inner()));
        observe_within("OffloadToolOutput", OFFLOAD_TIMEOUT, offload).await
    }

    type ReadToolOutputStream = Messages<pb::ReadToolOutputResponse>;

    async fn read_tool_output(
        &self,
        request: Request<pb::ReadToolOutputRequest>,
    ) -> Result<Response<Self::ReadToolOutputStream>, Status> {
        observe("ReadToolOutput", self.read(request.into_inner())).await
    }

    async fn get_tool_output(
        &self,
        request: Request<pb::GetToolOutputRequest>,
    ) -> Result<Response<pb::ToolOutput>, Status> {
        let request = request.into_inner();
        observe("GetToolOutput", async {
            let name = output_name(&request.name)?;
            Ok(tool_output(&name, self.engine.get_output(&self.tenant, &name).await?))
        })
        .await
    }

    async fn list_tool_outputs(
        &self,
        request: Request<pb::ListToolOutputsRequest>,
    ) -> Result<Response<pb::ListToolOutputsResponse>, Status> {
        observe("ListToolOutputs", self.list(request.into_inner())).await
    }
}
