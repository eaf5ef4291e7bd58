//! `MemoryService`.

use super::compactions::{pin, read_pin};
use super::observe::observe;
use super::{convert, pages, pb};
use crate::engine::{Engine, Episode, Error};
use crate::limits::PAGE_BYTES_MAX;
use crate::model::{Note, SessionId, TenantId};
use prost::Message as _;
use tonic::{Request, Response, Status};

/// `MemoryService` over an engine.
#[derive(Debug, Clone)]
pub struct Memory {
    engine: Engine,
    tenant: TenantId,
}

impl Memory {
    /// The service, for one tenant.
    pub fn new(engine: Engine, tenant: TenantId) -> Self {
        Self { engine, tenant }
    }

    async fn put_note(&self, request: pb::PutNoteRequest) -> Result<pb::Note, Error> {
        let key = convert::session_key(&self.tenant, "parent", &request.parent)?;
        let new = request.note.ok_or_else(|| Error::invalid("note", "must be set"))?;
        Ok(note(self.engine.put_note(&key, &new.name, &new.text).await?))
    }

    async fn list_episodes(
        &self,
        request: pb::ListEpisodesRequest,
    ) -> Result<pb::ListEpisodesResponse, Error> {
        let key = convert::session_key(&self.tenant, "parent", &request.parent)?;
        let before = pages::read_compaction_token(&request.page_token)?;
        let limit = pages::page_size(request.page_size)?;
        let page = self.engine.list_episodes(&key, before, limit).await?;
        let found = page.episodes.len();
        let mut answer = pb::ListEpisodesResponse::default();
        let (mut bytes, mut last) = (0, None);
        for found in page.episodes {
            let number = found.number;
            let told = episode(&key.session, found);
            bytes += told.encoded_len();
            if bytes > PAGE_BYTES_MAX && last.is_some() {
                break;
            }
            answer.episodes.push(told);
            last = Some(number);
        }
        if let Some(number) = last.filter(|_| page.more || answer.episodes.len() < found) {
            answer.next_page_token = pages::compaction_token(number);
        }
        Ok(answer)
    }

    async fn get_episode(&self, request: pb::GetEpisodeRequest) -> Result<pb::Episode, Error> {
        let wrong = || Error::invalid("name", "must have the form `sessions/{session}/episodes/{number}`");
        let (session, number) = request.name.split_once("/episodes/").ok_or_else(wrong)?;
        let number = number.parse().map_err(|_| wrong())?;
        let key = convert::session_key(&self.tenant, "name", session)?;
        Ok(episode(&key.session, self.engine.get_episode(&key, number).await?))
    }
}

fn note(note: Note) -> pb::Note {
    pb::Note { name: note.name, text: note.text, update_time: Some(convert::timestamp(note.updated_at)) }
}

fn episode(session: &SessionId, episode: Episode) -> pb::Episode {
    let Episode { number, version, created_at, first, last, text, ledger, model, cause } = episode;
    let session = session.resource_name();
    pb::Episode {
        name: format!("{session}/episodes/{number}"),
        compaction: format!("{session}/compactions/{number}"),
        version: version.0,
        create_time: Some(convert::timestamp(created_at)),
        first_seq: first.0,
        last_seq: last.0,
        text,
        ledger,
        model,
        cause,
    }
}

#[tonic::async_trait]
impl pb::memory_service_server::MemoryService for Memory {
    async fn put_pin(&self, request: Request<pb::PutPinRequest>) -> Result<Response<pb::Pin>, Status> {
        let request = request.into_inner();
        observe("PutPin", async {
            let key = convert::session_key(&self.tenant, "parent", &request.parent)?;
            let new = request.pin.ok_or_else(|| Error::invalid("pin", "must be set"))?;
            Ok(pin(Box::pin(self.engine.put_pin(&key, read_pin(new))).await?))
        })
        .await
    }

    async fn list_pins(
        &self,
        request: Request<pb::ListPinsRequest>,
    ) -> Result<Response<pb::ListPinsResponse>, Status> {
        let request = request.into_inner();
        observe("ListPins", async {
            let key = convert::session_key(&self.tenant, "parent", &request.parent)?;
            let pins = self.engine.list_pins(&key).await?;
            Ok(pb::ListPinsResponse { pins: pins.into_iter().map(pin).collect() })
        })
        .await
    }

    async fn delete_pin(&self, request: Request<pb::DeletePinRequest>) -> Result<Response<()>, Status> {
        let request = request.into_inner();
        observe("DeletePin", async {
            let key = convert::session_key(&self.tenant, "parent", &request.parent)?;
            Box::pin(self.engine.delete_pin(&key, &request.pin)).await
        })
        .await
    }

    async fn put_note(&self, request: Request<pb::PutNoteRequest>) -> Result<Response<pb::Note>, Status> {
        observe("PutNote", self.put_note(request.into_inner())).await
    }

    async fn get_note(&self, request: Request<pb::GetNoteRequest>) -> Result<Response<pb::Note>, Status> {
        let request = request.into_inner();
        observe("GetNote", async {
            let key = convert::session_key(&self.tenant, "parent", &request.parent)?;
            Ok(note(self.engine.get_note(&key, &request.note).await?))
        })
        .await
    }

    async fn list_notes(
        &self,
        request: Request<pb::ListNotesRequest>,
    ) -> Result<Response<pb::ListNotesResponse>, Status> {
        let request = request.into_inner();
        observe("ListNotes", async {
            let key = convert::session_key(&self.tenant, "parent", &request.parent)?;
            let notes = self.engine.list_notes(&key).await?;
            Ok(pb::ListNotesResponse { notes: notes.into_iter().map(note).collect() })
        })
        .await
    }

    async fn delete_note(&self, request: Request<pb::DeleteNoteRequest>) -> Result<Response<()>, Status> {
        let request = request.into_inner();
        observe("DeleteNote", async {
            let key = convert::session_key(&self.tenant, "parent", &request.parent)?;
            self.engine.delete_note(&key, &request.note).await
        })
        .await
    }

    async fn list_episodes(
        &self,
        request: Request<pb::ListEpisodesRequest>,
    ) -> Result<Response<pb::ListEpisodesResponse>, Status> {
        observe("ListEpisodes", self.list_episodes(request.into_inner())).await
    }

    async fn get_episode(
        &self,
        request: Request<pb::GetEpisodeRequest>,
    ) -> Result<Response<pb::Episode>, Status> {
        observe("GetEpisode", self.get_episode(request.into_inner())).await
    }
}
