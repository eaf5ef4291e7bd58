//! Deleting sessions, and their receipts.

use super::keys::{self, LedgerEntry};
use super::{Engine, Error};
use crate::clock::Micros;
use crate::codec::digest;
use crate::model::Deletion;
use crate::store::ErrorKind;
use crate::store::meta::SessionKey;

impl Engine {
    /// Makes a session unreadable, and its forks if so asked, and begins to
    /// erase what they stored. Returns the receipt; repeating the call returns
    /// it as it stands.
    pub async fn delete_session(&self, key: SessionKey, include_forks: bool) -> Result<Deletion, Error> {
        let engine = self.clone();
        self.detached(async move { engine.delete_detached(&key, include_forks).await }).await
    }

    async fn delete_detached(&self, key: &SessionKey, include_forks: bool) -> Result<Deletion, Error> {
        let now = self.now();
        let grace = now.plus(self.inner.options.grace);
        let deleted = self.inner.meta.delete_session(key, include_forks, now, grace).await?;
        for session in deleted {
            let key = SessionKey { tenant: key.tenant.clone(), session };
            self.inner.caches.forget(&key);
            // If the object store fails now, the upkeep does it later; until
            // then the receipt says that the deletion is pending.
            if let Err(error) = self.enter_ledger(&key, now).await {
                tracing::warn!(session = %key.session, error = %error, "deletion is not in the ledger yet");
            }
        }
        self.deletion(key).await.map_err(Error::after_write)
    }

    /// The receipt of a deletion.
    pub async fn deletion(&self, key: &SessionKey) -> Result<Deletion, Error> {
        let deletion = self.inner.meta.deletion(key).await?;
        deletion.ok_or_else(|| Error::SessionNotFound { session: key.session.clone() })
    }

    /// Writes a deletion into the bucket's ledger, which outlives the metadata.
    pub(super) async fn enter_ledger(&self, key: &SessionKey, deleted_at: Micros) -> Result<(), Error> {
        let entry = LedgerEntry {
            turnkeep: "deletion".to_owned(),
            tenant: key.tenant.clone(),
            session: key.session.clone(),
            deleted_at,
        };
        let body = serde_json::to_vec(&entry).map_err(|error| Error::Internal {
            context: "ledger entry".to_owned(),
            source: Some(error.into()),
        })?;
        let sha256 = digest::sha256(&body);
        match self.put_blob(&keys::ledger(key), body.into(), sha256).await {
            // The same session's of before the metadata was taken back to an
            // earlier time: the key is its alone.
            Err(error) if error.kind == ErrorKind::KeyTaken => {}
            put => put.map_err(Error::of_objects)?,
        }
        Ok(self.inner.meta.deletion_in_ledger(key).await?)
    }
}
