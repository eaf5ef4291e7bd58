//! Tool results that may be too long for a transcript.

use super::{Client, ClientError};
use crate::limits::STREAM_CHUNK_BYTES;
use crate::rpc::pb;
use bytes::Bytes;
use futures::stream;
use pb::offload_tool_output_request::{Commit, Frame, Start};
use pb::offload_tool_output_response::{Outcome, Stored};
use sha2::{Digest as _, Sha256};

impl Client {
    /// Makes the text of a tool result of what a tool gave out: the text itself if
    /// that is short enough, else its preview, behind which the whole is kept.
    pub async fn tool_result(
        &mut self,
        start: Start,
        content: impl Into<Bytes>,
    ) -> Result<String, ClientError> {
        let content = content.into();
        let commit = Commit { bytes: content.len() as u64, sha256: Sha256::digest(&content).to_vec().into() };
        let mut rest = content.clone();
        let data = std::iter::from_fn(move || {
            let next = rest.split_to(rest.len().min(STREAM_CHUNK_BYTES));
            (!next.is_empty()).then_some(Frame::Data(next))
        });
        let frames = std::iter::once(Frame::Start(start)).chain(data).chain([Frame::Commit(commit)]);
        let frames = frames.map(|frame| pb::OffloadToolOutputRequest { frame: Some(frame) });
        let answer = self.outputs.offload_tool_output(stream::iter(frames)).await?.into_inner();
        match answer.outcome {
            Some(Outcome::Inline(_)) => Ok(String::from_utf8_lossy(&content).into_owned()),
            Some(Outcome::Stored(Stored { preview, .. })) => Ok(preview),
            None => Err(ClientError::Contract("an offload has an outcome")),
        }
    }
}
