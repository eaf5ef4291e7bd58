//! `MemoryService`.

use super::compactions::{pin, read_pin};
use super::observe::observe;
use super::{convert, pb};
use crate::engine::{Engine, Error};
use crate::model::TenantId;
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
}
