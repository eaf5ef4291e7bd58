//! Checking tool outputs.

use super::{BATCH, FsckOptions, FsckReport};
use crate::engine::error::digest_mismatch;
use crate::engine::output_blob::OutputBlob;
use crate::engine::{Engine, Error, compute};
use crate::model::invariants::Violation;
use crate::model::{Branch, Digest, Output, OutputId, OutputName, TenantId};
use crate::store::meta::{BranchKey, SessionKey};
use sha2::{Digest as _, Sha256};

impl Engine {
    /// Checks that the blobs of a branch's tool outputs are there and, if the check
    /// is deep, that they hold what was offloaded.
    pub(super) async fn check_outputs(
        &self,
        key: &BranchKey,
        branch: &Branch,
        options: FsckOptions,
        report: &mut FsckReport,
        findings: &mut Vec<Violation>,
    ) -> Result<(), Error> {
        let mut after: Option<OutputId> = None;
        loop {
            let outputs = self.inner.meta.outputs_of_branch(key, after.as_ref(), BATCH).await?;
            let Some(last) = outputs.last() else { return Ok(()) };
            after = Some(last.id.clone());
            for output in outputs {
                report.outputs += 1;
                let name = OutputName { session: branch.session.clone(), output: output.id.clone() };
                let checked = if options.deep {
                    self.check_content(&key.tenant, &name).await
                } else {
                    self.check_stored_bytes(&key.tenant, &name, &output).await
                };
                match checked {
                    // It was erased meanwhile.
                    Ok(()) | Err(Error::OutputNotFound { .. }) => {}
                    Err(error @ (Error::OutputLost { .. } | Error::NewerFormat { .. })) => {
                        // It may have been moved meanwhile, or erased.
                        let session = SessionKey { tenant: key.tenant.clone(), session: name.session };
                        let current = self.inner.meta.output(&session, &output.id).await?;
                        let is_same = current.is_some_and(|current| current.key == output.key);
                        findings.extend(is_same.then(|| error.to_string()));
                    }
                    Err(error) => return Err(error),
                }
            }
        }
    }

    async fn check_stored_bytes(
        &self,
        tenant: &TenantId,
        name: &OutputName,
        output: &Output,
    ) -> Result<(), Error> {
        let (what, found) = if let Some(key) = &output.key {
            let found = self.in_time(self.inner.blobs.size(key)).await.map_err(Error::of_objects)?;
            (format!("blob {key}"), found)
        } else {
            let held = self.inner.meta.held_output(tenant, &output.id).await?;
            ("what is held of it".to_owned(), held.map(|held| held.len() as u64))
        };
        let problem = match found {
            Some(bytes) if bytes == output.stored_bytes => return Ok(()),
            Some(bytes) => format!("{what} has {bytes} bytes, not {}", output.stored_bytes),
            None => format!("{what} is missing"),
        };
        Err(Error::OutputLost { name: name.clone(), problem })
    }

    async fn check_content(&self, tenant: &TenantId, name: &OutputName) -> Result<(), Error> {
        let blob = self.open_output(tenant, name).await?;
        check_about(tenant, name, &blob)?;
        let (expected, frames) = (blob.output.sha256, blob.index.frames().to_vec());
        let mut frames = blob.frames(frames);
        let mut sha256 = Sha256::new();
        while let Some((_, raw)) = frames.next().await? {
            sha256 = compute(raw.len(), move || sha256.chain_update(&raw)).await?;
        }
        let found = Digest(sha256.finalize().into());
        if found == expected {
            return Ok(());
        }
        Err(Error::OutputLost {
            name: name.clone(),
            problem: digest_mismatch("its content", expected, found),
        })
    }
}

/// A blob of a tool output says the same of it as the row, but for its place, which
/// the row may know better: a rebuild goes by it.
fn check_about(tenant: &TenantId, name: &OutputName, blob: &OutputBlob) -> Result<(), Error> {
    let row = &blob.output;
    let about = blob.index.about()?;
    let of_session = (&about.tenant, &about.session) == (tenant, &name.session);
    let about = about.into_output(row.key.clone(), row.stored_bytes, row.tail_at);
    if of_session && (Output { branch: row.branch.clone(), version: row.version, ..about }) == *row {
        return Ok(());
    }
    let problem = "its blob tells of it otherwise than its row".to_owned();
    Err(Error::OutputLost { name: name.clone(), problem })
}
