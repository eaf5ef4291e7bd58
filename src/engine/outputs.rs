//! What is known of tool outputs.

use super::{Engine, Error};
use crate::model::{Output, OutputId, OutputName, TenantId};
use crate::store::meta::SessionKey;

/// A page of outputs.
#[derive(Clone, Debug)]
pub struct OutputPage {
    /// The outputs, the newest first.
    pub outputs: Vec<Output>,
    /// Whether there are more.
    pub more: bool,
}

impl Engine {
    /// A tool output. Whether there is none of that name or another tenant's is
    /// not told.
    pub async fn get_output(&self, tenant: &TenantId, name: &OutputName) -> Result<Output, Error> {
        let key = SessionKey { tenant: tenant.clone(), session: name.session.clone() };
        let found = self.inner.meta.output(&key, &name.output).await?;
        found.ok_or_else(|| Error::OutputNotFound { name: name.clone() })
    }

    /// The tool outputs of a session, the newest first; of them those before
    /// `before`.
    pub async fn list_outputs(
        &self,
        key: &SessionKey,
        before: Option<&OutputId>,
        limit: u32,
    ) -> Result<OutputPage, Error> {
        self.tip(key, None).await?;
        let mut outputs = self.inner.meta.outputs(key, before, limit.saturating_add(1)).await?;
        let more = outputs.len() > limit as usize;
        outputs.truncate(limit as usize);
        Ok(OutputPage { outputs, more })
    }
}
