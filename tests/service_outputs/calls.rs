//! Calls of `ToolOutputService`.

#![allow(dead_code, reason = "each test file uses its part of it")]

use crate::service::{Refusal, Service};
use pb::offload_tool_output_request::{Commit, Frame, Start};
use pb::offload_tool_output_response::{Outcome, Stored};
use pb::read_tool_output_response::{End, Line, Part};
use turnkeep::codec::digest;
use turnkeep::rpc::pb;

fn frame(frame: Frame) -> pb::OffloadToolOutputRequest {
    pb::OffloadToolOutputRequest { frame: Some(frame) }
}

pub(crate) fn start(session: &str) -> pb::OffloadToolOutputRequest {
    frame(Frame::Start(Start {
        session: session.to_owned(),
        tool_call_id: "call_1".to_owned(),
        tool_name: "grep".to_owned(),
        content_type: "text/plain".to_owned(),
        ..Default::default()
    }))
}

pub(crate) fn data(part: &[u8]) -> pb::OffloadToolOutputRequest {
    frame(Frame::Data(part.to_vec().into()))
}

pub(crate) fn commit(content: &[u8]) -> pb::OffloadToolOutputRequest {
    let sha256 = digest::sha256(content).0.to_vec().into();
    frame(Frame::Commit(Commit { bytes: content.len() as u64, sha256 }))
}

pub(crate) async fn offload_frames(
    service: &Service,
    frames: Vec<pb::OffloadToolOutputRequest>,
) -> Result<Outcome, Refusal> {
    let answer = service.client.outputs.clone().offload_tool_output(futures::stream::iter(frames)).await?;
    Ok(answer.into_inner().outcome.unwrap())
}

/// Offloads a content in frames of 300,000 bytes.
pub(crate) async fn offload(service: &Service, session: &str, content: &[u8]) -> Result<Outcome, Refusal> {
    let mut frames = vec![start(session)];
    frames.extend(content.chunks(300_000).map(data));
    frames.push(commit(content));
    offload_frames(service, frames).await
}

pub(crate) fn stored(outcome: Outcome) -> Stored {
    match outcome {
        Outcome::Stored(stored) => stored,
        inline @ Outcome::Inline(_) => panic!("{inline:?}"),
    }
}

pub(crate) async fn get(service: &Service, name: &str) -> Result<pb::ToolOutput, Refusal> {
    let request = pb::GetToolOutputRequest { name: name.to_owned() };
    Ok(service.client.outputs.clone().get_tool_output(request).await?.into_inner())
}

pub(crate) async fn list_page(
    service: &Service,
    parent: &str,
    page_size: i32,
    page_token: &str,
) -> Result<pb::ListToolOutputsResponse, Refusal> {
    let request = pb::ListToolOutputsRequest {
        parent: parent.to_owned(),
        page_size,
        page_token: page_token.to_owned(),
    };
    Ok(service.client.outputs.clone().list_tool_outputs(request).await?.into_inner())
}

pub(crate) async fn list(service: &Service, parent: &str) -> Vec<pb::ToolOutput> {
    let page = list_page(service, parent, 1_000, "").await.unwrap();
    assert_eq!(page.next_page_token, "");
    page.outputs
}

/// A read that came whole.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Read {
    pub(crate) output: pb::ToolOutput,
    pub(crate) bytes: Vec<u8>,
    /// Place of the first byte and its line.
    pub(crate) first: Option<(u64, u64)>,
    pub(crate) lines: Vec<Line>,
    pub(crate) end: End,
}

pub(crate) async fn read(service: &Service, request: pb::ReadToolOutputRequest) -> Result<Read, Refusal> {
    let mut parts = service.client.outputs.clone().read_tool_output(request).await?.into_inner();
    let first = parts.message().await?.and_then(|message| message.part);
    let Some(Part::Output(output)) = first else { panic!("a read begins with {first:?}") };
    let mut read = Read { output, bytes: vec![], first: None, lines: vec![], end: End::default() };
    let mut ended = false;
    while let Some(message) = parts.message().await? {
        assert!(!ended, "after the end comes {message:?}");
        match message.part.unwrap() {
            Part::Content(content) => {
                let first = *read.first.get_or_insert((content.first_byte, content.first_line));
                assert_eq!(content.first_byte, first.0 + read.bytes.len() as u64);
                assert_eq!(content.first_line, first.1 + line_breaks(&read.bytes));
                read.bytes.extend_from_slice(&content.data);
            }
            Part::Lines(lines) => read.lines.extend(lines.lines),
            Part::End(end) => (read.end, ended) = (end, true),
            Part::Output(_) => panic!("two headers"),
        }
    }
    assert!(ended, "no end");
    Ok(read)
}

pub(crate) fn line_breaks(bytes: &[u8]) -> u64 {
    bytes.split(|byte| *byte == b'\n').count() as u64 - 1
}

/// The whole content.
pub(crate) async fn whole(service: &Service, name: &str) -> Vec<u8> {
    let request = pb::ReadToolOutputRequest { name: name.to_owned(), unlimited: true, ..Default::default() };
    let read = read(service, request).await.unwrap();
    assert_eq!(read.end, End { is_complete: true, ..Default::default() });
    read.bytes
}
