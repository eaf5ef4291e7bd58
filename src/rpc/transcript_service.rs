//! `TranscriptService`.

use super::admission::Room;
use super::observe::{allowed, observe};
use super::{convert, pb, search};
use crate::engine::{Engine, Error, Input, LogRange, PersistRequest, RestoreRequest};
use crate::limits::{STEP_KIND_BYTES_MAX, STREAM_CHUNK_BYTES, TOKENS_MAX};
use crate::model::{Seq, TenantId, Version};
use futures::stream::{self, Stream, StreamExt as _};
use prost::Message;
use std::pin::Pin;
use tonic::{Request, Response, Status};

/// `TranscriptService` over an engine.
#[derive(Debug, Clone)]
pub struct Transcripts {
    pub(super) engine: Engine,
    pub(super) tenant: TenantId,
}

type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Transcripts {
    /// The service, for one tenant.
    pub fn new(engine: Engine, tenant: TenantId) -> Self {
        Self { engine, tenant }
    }

    async fn persist(
        &self,
        request: pb::PersistTranscriptRequest,
        room: Option<Room>,
    ) -> Result<pb::PersistTranscriptResponse, Error> {
        use pb::persist_transcript_request::{Append, Input as Wire, Snapshot};
        let input = match request.input {
            // A kind that this version does not know looks like this too: its
            // entries must not be lost.
            None => {
                return Err(Error::invalid(
                    "input",
                    "must be set: `append`, if only with no entries, or `snapshot`",
                ));
            }
            Some(Wire::Append(Append { entries })) => {
                Input::Append(convert::new_entries("append.entries", entries)?)
            }
            Some(Wire::Snapshot(Snapshot { entries, window_id, allow_rewind })) => Input::Snapshot {
                entries: convert::new_entries("snapshot.entries", entries)?,
                window_id,
                allow_rewind,
            },
        };
        if request.step_kind.len() > STEP_KIND_BYTES_MAX {
            let problem =
                format!("has {} bytes; at most {STEP_KIND_BYTES_MAX} are allowed", request.step_kind.len());
            return Err(Error::invalid("step_kind", problem));
        }
        if request.score.is_some_and(|score| !score.is_finite()) {
            return Err(Error::invalid("score", "must be a finite number"));
        }
        let create = request.create_if_missing.map(convert::session_config).transpose();
        let key = convert::session_key(&self.tenant, "session", &request.session)?;
        let session = key.session.clone();
        let persist = PersistRequest {
            key,
            request_id: convert::request_id(&request.request_id)?,
            expected_version: request.expected_version.map(Version),
            input,
            usage: request.usage.map(convert::usage).transpose()?,
            score: request.score,
            step_kind: request.step_kind,
            create_if_missing: create.map_err(|error| error.within("create_if_missing"))?,
            window_id: request.window_id,
            keep_tool_results: request.keep_tool_results,
        };
        Ok(convert::persist_reply(&session, self.engine.persist_holding(persist, room).await?))
    }

    async fn restore(
        &self,
        request: pb::RestoreTranscriptRequest,
    ) -> Result<Messages<pb::RestoreTranscriptResponse>, Error> {
        use pb::restore_transcript_response::Part;
        for (field, tokens) in [
            ("reserve_tokens", request.reserve_tokens.unwrap_or(0)),
            ("fixed_overhead_tokens", request.fixed_overhead_tokens),
        ] {
            if tokens > TOKENS_MAX {
                return Err(Error::invalid(field, format!("is {tokens}; at most {TOKENS_MAX} are allowed")));
            }
        }
        if pb::CompressionMode::try_from(request.compression).is_err() {
            let problem = format!("is {}, which is not a known mode", request.compression);
            return Err(Error::invalid("compression", problem));
        }
        let restored = self
            .engine
            .restore(RestoreRequest {
                key: convert::session_key(&self.tenant, "session", &request.session)?,
                at_version: request.at_version.map(Version),
                known_window: request.known_window,
                reserve_tokens: request.reserve_tokens,
                fixed_overhead_tokens: request.fixed_overhead_tokens,
                close_pending: request.close_pending,
                is_whole: request.compression == pb::CompressionMode::None as i32,
            })
            .await?;
        let header = Part::Header(convert::window_header(restored.header));
        let items = chunks(restored.items.into_iter().map(|item| convert::item(&item)))
            .map(|items| Part::Items(pb::WindowItems { items }));
        let parts = std::iter::once(header).chain(items);
        let messages = parts.map(|part| Ok(pb::RestoreTranscriptResponse { part: Some(part) }));
        Ok(stream::iter(messages).boxed())
    }

    async fn read(
        &self,
        request: pb::ReadTranscriptRequest,
    ) -> Result<Messages<pb::ReadTranscriptResponse>, Error> {
        use pb::read_transcript_response::Part;
        let key = convert::session_key(&self.tenant, "session", &request.session)?;
        let range = LogRange {
            first: request.first_seq.map(Seq),
            last: request.last_seq.map(Seq),
            at_version: request.at_version.map(Version),
        };
        let (header, entries) = self.engine.read(key, range).await?;
        let header = stream::iter([Ok(Part::Header(convert::read_header(&header)))]);
        let entries = entries.flat_map(|piece| {
            let messages: Vec<_> = match piece {
                Ok(entries) => chunks(entries.into_iter().map(|entry| convert::entry(&entry)))
                    .map(|entries| Ok(Part::Entries(pb::Entries { entries })))
                    .collect(),
                Err(error) => vec![Err(super::to_status(&error))],
            };
            stream::iter(messages)
        });
        let messages = header
            .chain(entries)
            .map(|part| part.map(|part| pb::ReadTranscriptResponse { part: Some(part) }));
        Ok(messages.boxed())
    }

    async fn search(
        &self,
        request: pb::SearchTranscriptRequest,
    ) -> Result<Messages<pb::SearchTranscriptResponse>, Error> {
        use pb::search_transcript_response::Part;
        let request = search::request(&self.tenant, request)?;
        let (header, parts) = self.engine.search_transcript(request).await?;
        let header = stream::iter([Ok(Part::Header(convert::read_header(&header)))]);
        let parts = parts.flat_map(|part| {
            let messages: Vec<_> = match part.map(search::told) {
                Ok(search::Told::Matches(found)) => {
                    chunks(found.into_iter()).map(search::matches).map(Ok).collect()
                }
                Ok(search::Told::End(end)) => vec![Ok(end)],
                Err(error) => vec![Err(super::to_status(&error))],
            };
            stream::iter(messages)
        });
        let messages = header
            .chain(parts)
            .map(|part| part.map(|part| pb::SearchTranscriptResponse { part: Some(part) }));
        Ok(messages.boxed())
    }
}

/// Groups values into messages: each as many as stay within the encoded size of
/// one, or a single larger one.
fn chunks<T: Message + Send>(values: impl Iterator<Item = T> + Send) -> impl Iterator<Item = Vec<T>> + Send {
    // With the key of the field and the length before it.
    let size = |value: &T| value.encoded_len() + 1 + prost::length_delimiter_len(value.encoded_len());
    let mut values = values.peekable();
    std::iter::from_fn(move || {
        let first = values.next()?;
        let mut bytes = size(&first);
        let mut chunk = vec![first];
        while let Some(next) = values.next_if(|next| bytes + size(next) <= STREAM_CHUNK_BYTES) {
            bytes += size(&next);
            chunk.push(next);
        }
        Some(chunk)
    })
}

#[tonic::async_trait]
impl pb::transcript_service_server::TranscriptService for Transcripts {
    async fn persist_transcript(
        &self,
        request: Request<pb::PersistTranscriptRequest>,
    ) -> Result<Response<pb::PersistTranscriptResponse>, Status> {
        let room = request.extensions().get().cloned();
        observe("PersistTranscript", Box::pin(self.persist(request.into_inner(), room))).await
    }

    type RestoreTranscriptStream = Messages<pb::RestoreTranscriptResponse>;

    async fn restore_transcript(
        &self,
        request: Request<pb::RestoreTranscriptRequest>,
    ) -> Result<Response<Self::RestoreTranscriptStream>, Status> {
        observe("RestoreTranscript", Box::pin(self.restore(request.into_inner()))).await
    }

    type ReadTranscriptStream = Messages<pb::ReadTranscriptResponse>;

    async fn read_transcript(
        &self,
        request: Request<pb::ReadTranscriptRequest>,
    ) -> Result<Response<Self::ReadTranscriptStream>, Status> {
        observe("ReadTranscript", self.read(request.into_inner())).await
    }

    async fn compact_transcript(
        &self,
        request: Request<pb::CompactTranscriptRequest>,
    ) -> Result<Response<pb::CompactTranscriptResponse>, Status> {
        let allowed = allowed(request.metadata());
        observe("CompactTranscript", Box::pin(self.compact(request.into_inner(), allowed))).await
    }

    async fn plan_compaction(
        &self,
        request: Request<pb::PlanCompactionRequest>,
    ) -> Result<Response<pb::PlanCompactionResponse>, Status> {
        observe("PlanCompaction", self.plan_compaction(request.into_inner())).await
    }

    async fn commit_compaction(
        &self,
        request: Request<pb::CommitCompactionRequest>,
    ) -> Result<Response<pb::Compaction>, Status> {
        observe("CommitCompaction", Box::pin(self.commit_compaction(request.into_inner()))).await
    }

    async fn list_compactions(
        &self,
        request: Request<pb::ListCompactionsRequest>,
    ) -> Result<Response<pb::ListCompactionsResponse>, Status> {
        observe("ListCompactions", self.list_compactions(request.into_inner())).await
    }

    async fn get_compaction(
        &self,
        request: Request<pb::GetCompactionRequest>,
    ) -> Result<Response<pb::Compaction>, Status> {
        observe("GetCompaction", self.get_compaction(request.into_inner())).await
    }

    async fn undo_compaction(
        &self,
        request: Request<pb::UndoCompactionRequest>,
    ) -> Result<Response<pb::Compaction>, Status> {
        observe("UndoCompaction", Box::pin(self.undo_compaction(request.into_inner()))).await
    }

    type SearchTranscriptStream = Messages<pb::SearchTranscriptResponse>;

    async fn search_transcript(
        &self,
        request: Request<pb::SearchTranscriptRequest>,
    ) -> Result<Response<Self::SearchTranscriptStream>, Status> {
        observe("SearchTranscript", self.search(request.into_inner())).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_hold_what_fits_and_lose_nothing() {
        // Beside its payload such an entry takes eight bytes, and an empty one
        // that has nothing else two.
        const MOST: usize = STREAM_CHUNK_BYTES - 8;
        let sizes = [1, MOST - 5, 1, 3 * STREAM_CHUNK_BYTES, 0, MOST - 2, MOST - 1, 0, 5];
        let entry = |size: usize| pb::Entry { payload: vec![0; size].into(), ..Default::default() };
        let grouped: Vec<Vec<_>> = chunks(sizes.into_iter().map(entry))
            .map(|chunk| {
                let sizes = chunk.iter().map(|entry| entry.payload.len()).collect();
                let encoded = pb::Entries { entries: chunk }.encoded_len();
                assert!(encoded <= STREAM_CHUNK_BYTES || encoded > 3 * STREAM_CHUNK_BYTES);
                sizes
            })
            .collect();
        let expected: [&[usize]; 6] =
            [&[1, MOST - 5], &[1], &[3 * STREAM_CHUNK_BYTES], &[0, MOST - 2], &[MOST - 1], &[0, 5]];
        assert_eq!(grouped, expected);
    }

    #[test]
    fn many_small_entries_stay_within_the_size_of_a_message() {
        let entry = pb::Entry { seq: 1, version: 1, payload: "{}".into(), ..Default::default() };
        let chunks: Vec<_> = chunks(std::iter::repeat_n(entry, 400_000)).collect();
        assert_eq!(chunks.iter().map(Vec::len).sum::<usize>(), 400_000);
        for entries in chunks {
            assert!(pb::Entries { entries }.encoded_len() <= STREAM_CHUNK_BYTES);
        }
    }
}
