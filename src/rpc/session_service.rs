//! `SessionService`.

use super::observe::observe;
use super::{convert, pages, pb};
use crate::engine::{Engine, Error, ForkRequest, RewindRequest};
use crate::limits::{FILTER_LABELS_MAX, PAGE_BYTES_MAX};
use crate::model::{TenantId, Version};
use crate::store::meta::{SessionKey, SessionQuery};
use prost::Message as _;
use tonic::{Request, Response, Status};

/// `SessionService` over an engine.
#[derive(Debug, Clone)]
pub struct Sessions {
    engine: Engine,
    tenant: TenantId,
}

impl Sessions {
    /// The service, for one tenant.
    pub fn new(engine: Engine, tenant: TenantId) -> Self {
        Self { engine, tenant }
    }

    fn key(&self, field: &str, name: &str) -> Result<SessionKey, Error> {
        convert::session_key(&self.tenant, field, name)
    }

    async fn create(&self, request: pb::CreateSessionRequest) -> Result<pb::Session, Error> {
        let session = match request.session_id.as_str() {
            "" => self.engine.mint_session_id()?,
            id => convert::session_id("session_id", id)?,
        };
        let key = SessionKey { tenant: self.tenant.clone(), session };
        let config = request.session.map(convert::session_config).transpose();
        let config = config.map_err(|error| error.within("session"))?;
        if !request.continue_from.is_empty() {
            let source = self.key("continue_from", &request.continue_from)?;
            return Ok(convert::session(self.engine.continue_session(key, source, config).await?));
        }
        let config = config.ok_or_else(|| Error::invalid("session", "is required"))?;
        let created = self.engine.create_session(key, config).await;
        Ok(convert::session(created.map_err(|error| error.within("session"))?))
    }

    async fn list(&self, request: pb::ListSessionsRequest) -> Result<pb::ListSessionsResponse, Error> {
        let filter = request.filter.unwrap_or_default();
        if filter.labels.len() > FILTER_LABELS_MAX {
            let problem =
                format!("has {} labels; at most {FILTER_LABELS_MAX} are allowed", filter.labels.len());
            return Err(Error::invalid("filter.labels", problem));
        }
        let query = SessionQuery {
            path: convert::optional_path("filter.path", filter.path)?,
            labels: filter.labels.into_iter().collect(),
            created_min: convert::time("filter.create_time_min", filter.create_time_min)?,
            created_max: convert::time("filter.create_time_max", filter.create_time_max)?,
            updated_min: convert::time("filter.update_time_min", filter.update_time_min)?,
            after: pages::read_session_token(&request.page_token)?,
            limit: pages::page_size(request.page_size)?,
        };
        let page = self.engine.list_sessions(&self.tenant, query).await?;
        let found = page.sessions.len();
        let mut answer = pb::ListSessionsResponse::default();
        let (mut bytes, mut last) = (0, None);
        for view in page.sessions {
            let place = (view.session.created_at, view.session.id.clone());
            let session = convert::session(view);
            bytes += session.encoded_len();
            if bytes > PAGE_BYTES_MAX && last.is_some() {
                break;
            }
            answer.sessions.push(session);
            last = Some(place);
        }
        if let Some((created_at, id)) = last.filter(|_| page.more || answer.sessions.len() < found) {
            answer.next_page_token = pages::session_token(created_at, &id);
        }
        Ok(answer)
    }

    async fn update(&self, request: pb::UpdateSessionRequest) -> Result<pb::Session, Error> {
        let session = request.session.ok_or_else(|| Error::invalid("session", "is required"))?;
        let mask = request.update_mask.map(|mask| mask.paths).unwrap_or_default();
        let key = self.key("session.name", &session.name)?;
        let change = convert::session_change(&session, &mask)?;
        let updated = self.engine.update_session(key, change).await;
        Ok(convert::session(updated.map_err(|error| error.within("session"))?))
    }

    async fn fork(&self, request: pb::ForkSessionRequest) -> Result<pb::Session, Error> {
        let session = match request.session_id.as_str() {
            "" => None,
            id => Some(convert::session_id("session_id", id)?),
        };
        let fork = ForkRequest {
            source: self.key("name", &request.name)?,
            version: request.version.map(Version),
            session,
            labels: request.labels.into_iter().collect(),
            request_id: convert::request_id(&request.request_id)?,
        };
        Ok(convert::session(self.engine.fork_session(fork).await?))
    }

    async fn rewind(&self, request: pb::RewindSessionRequest) -> Result<pb::Session, Error> {
        let rewind = RewindRequest {
            key: self.key("name", &request.name)?,
            version: Version(request.version),
            expected_version: request.expected_version.map(Version),
            request_id: convert::request_id(&request.request_id)?,
        };
        Ok(convert::session(self.engine.rewind_session(rewind).await?))
    }

    async fn turns(&self, request: pb::ListTurnsRequest) -> Result<pb::ListTurnsResponse, Error> {
        let key = self.key("name", &request.name)?;
        let before = pages::read_turn_token(&request.page_token)?;
        let page = self.engine.list_turns(&key, before, pages::page_size(request.page_size)?).await?;
        let next_page_token = match page.turns.last() {
            Some(last) if page.more => pages::turn_token(last.version),
            _ => String::new(),
        };
        Ok(pb::ListTurnsResponse {
            turns: page.turns.into_iter().map(convert::turn).collect(),
            next_page_token,
        })
    }
}

#[tonic::async_trait]
impl pb::session_service_server::SessionService for Sessions {
    async fn create_session(
        &self,
        request: Request<pb::CreateSessionRequest>,
    ) -> Result<Response<pb::Session>, Status> {
        observe("CreateSession", Box::pin(self.create(request.into_inner()))).await
    }

    async fn get_session(
        &self,
        request: Request<pb::GetSessionRequest>,
    ) -> Result<Response<pb::Session>, Status> {
        let request = request.into_inner();
        observe("GetSession", async {
            let key = self.key("name", &request.name)?;
            Ok(convert::session(self.engine.get_session(&key).await?))
        })
        .await
    }

    async fn list_sessions(
        &self,
        request: Request<pb::ListSessionsRequest>,
    ) -> Result<Response<pb::ListSessionsResponse>, Status> {
        observe("ListSessions", self.list(request.into_inner())).await
    }

    async fn update_session(
        &self,
        request: Request<pb::UpdateSessionRequest>,
    ) -> Result<Response<pb::Session>, Status> {
        observe("UpdateSession", Box::pin(self.update(request.into_inner()))).await
    }

    async fn delete_session(
        &self,
        request: Request<pb::DeleteSessionRequest>,
    ) -> Result<Response<pb::DeletionReceipt>, Status> {
        let request = request.into_inner();
        observe("DeleteSession", async {
            let key = self.key("name", &request.name)?;
            Ok(convert::deletion(&self.engine.delete_session(key, request.include_forks).await?))
        })
        .await
    }

    async fn get_deletion_receipt(
        &self,
        request: Request<pb::GetDeletionReceiptRequest>,
    ) -> Result<Response<pb::DeletionReceipt>, Status> {
        let request = request.into_inner();
        observe("GetDeletionReceipt", async {
            let key = self.key("name", &request.name)?;
            Ok(convert::deletion(&self.engine.deletion(&key).await?))
        })
        .await
    }

    async fn fork_session(
        &self,
        request: Request<pb::ForkSessionRequest>,
    ) -> Result<Response<pb::Session>, Status> {
        observe("ForkSession", Box::pin(self.fork(request.into_inner()))).await
    }

    async fn rewind_session(
        &self,
        request: Request<pb::RewindSessionRequest>,
    ) -> Result<Response<pb::Session>, Status> {
        observe("RewindSession", Box::pin(self.rewind(request.into_inner()))).await
    }

    async fn list_turns(
        &self,
        request: Request<pb::ListTurnsRequest>,
    ) -> Result<Response<pb::ListTurnsResponse>, Status> {
        observe("ListTurns", self.turns(request.into_inner())).await
    }
}
