//! Tool outputs, made anew from the tails of their blobs.

use super::evidence::Evidence;
use super::{RebuildReport, Rebuilt, place};
use crate::codec::output::{About, END_BYTES, Index, tail_bytes};
use crate::engine::Error;
use crate::engine::fsck::Finding;
use crate::engine::persist::OffloadedResult;
use crate::model::{BranchId, Output, OutputId, SessionId, TenantId, Version};
use crate::store::blob::BlobInfo;
use crate::store::{BlobStore, ErrorKind, StoreError};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// A branch of a tenant.
type OfTenant = (TenantId, BranchId);

/// A blob that says which output it is.
#[derive(Clone, Debug)]
pub(super) struct FoundOutput {
    pub(super) about: About,
    pub(super) key: String,
    stored_bytes: u64,
    tail_at: u64,
}

/// Reads the tail of an output's blob; or says what is wrong with it.
pub(super) async fn read(
    blobs: &dyn BlobStore,
    blob: &BlobInfo,
) -> Result<Result<FoundOutput, String>, Error> {
    /// Bytes that are got at once: the whole tail of all but the largest.
    const END: u64 = 64 << 10;
    let get = async |start: u64| match blobs.get_range(&blob.key, start..blob.bytes).await {
        Ok(bytes) => Ok(Ok(bytes)),
        Err(StoreError { kind: ErrorKind::NotFound | ErrorKind::Corrupt, context, .. }) => Ok(Err(context)),
        Err(error) => Err(Error::of_objects(error)),
    };
    if blob.bytes < END_BYTES as u64 {
        return Ok(Err("it is cut short".to_owned()));
    }
    let start = blob.bytes.saturating_sub(END);
    let end = match get(start).await? {
        Ok(end) => end,
        Err(problem) => return Ok(Err(problem)),
    };
    let tail_at = match tail_bytes(&end) {
        Ok(bytes) if bytes <= blob.bytes => blob.bytes - bytes,
        Ok(_) => return Ok(Err("it is cut short".to_owned())),
        Err(error) => return Ok(Err(error.to_string())),
    };
    let tail = match tail_at.checked_sub(start).and_then(|skipped| usize::try_from(skipped).ok()) {
        Some(skipped) => Ok(end.slice(skipped.min(end.len())..)),
        None => get(tail_at).await?,
    };
    Ok(tail.and_then(|tail| decode(blob, &tail, tail_at)))
}

fn decode(blob: &BlobInfo, tail: &Bytes, tail_at: u64) -> Result<FoundOutput, String> {
    let index = Index::decode(tail, tail_at).map_err(|error| error.to_string())?;
    let about = index.about().map_err(|error| error.to_string())?;
    if about.bytes != index.frames().last().map_or(0, |frame| frame.raw.end) {
        return Err("it has another size than it says".to_owned());
    }
    Ok(FoundOutput { about, key: blob.key.clone(), stored_bytes: blob.bytes, tail_at })
}

/// The outputs of the branches that are needed.
pub(super) fn place_outputs(
    evidence: &Evidence,
    branches: &BTreeMap<OfTenant, Rebuilt>,
    needed: &BTreeSet<OfTenant>,
    newest: &BTreeMap<(TenantId, SessionId), &Rebuilt>,
    report: &mut RebuildReport,
) -> BTreeMap<OfTenant, Vec<Output>> {
    let mut note = |place: String, problem: String| report.findings.push(Finding { place, problem });
    let mut of_turns = of_turns(branches, needed);
    let mut placed: BTreeMap<_, Vec<Output>> = BTreeMap::new();
    for ((tenant, id), found) in &evidence.outputs {
        let told = of_turns.remove(&(tenant.clone(), id.clone()));
        let Some(first) = found.first() else { continue };
        if let Some(other) = found.iter().find(|other| !is_same(&first.about, &other.about)) {
            let problem = format!("contradicts blob {} on what tool output {id} is; none is used", first.key);
            note(other.key.clone(), problem);
            continue;
        }
        // Two that tried to move a held output, or one whose first try had no answer.
        for other in found.iter().skip(1) {
            note(other.key.clone(), format!("has the same tool output as blob {}, which is used", first.key));
        }
        let about = &first.about;
        let branch = (tenant.clone(), about.branch.clone());
        let session = (tenant.clone(), about.session.clone());
        let (branch, version) = if let Some((branch, version)) = told {
            (branch.clone(), version)
        } else if let Some(rebuilt) = branches.get(&branch).filter(|_| needed.contains(&branch)) {
            // The turns after it may be lost.
            (branch, about.version.min(rebuilt.newest()))
        } else if let Some(rebuilt) = newest.get(&session) {
            let problem = format!("its branch {} is not there; it is on the session's newest", about.branch);
            note(first.key.clone(), problem);
            ((tenant.clone(), rebuilt.branch.id.clone()), rebuilt.newest())
        } else {
            if !evidence.deleted.contains_key(&session) {
                note(first.key.clone(), "a tool output whose session could not be made anew".to_owned());
            }
            continue;
        };
        let output = about.clone().into_output(Some(first.key.clone()), first.stored_bytes, first.tail_at);
        placed.entry(branch.clone()).or_default().push(Output { branch: branch.1, version, ..output });
    }
    for ((_, id), (branch, version)) in of_turns {
        note(place(branch), format!("tool output {id} of turn {} is not there", version.next()));
    }
    placed
}

/// Whether two blobs are of the same output, whenever they were written.
fn is_same(a: &About, b: &About) -> bool {
    About { branch: a.branch.clone(), version: a.version, ..b.clone() } == *a
}

/// Where the outputs belong that turns brought, as their replies say: the branch, and
/// the version before the turn.
fn of_turns<'a>(
    branches: &'a BTreeMap<OfTenant, Rebuilt>,
    needed: &BTreeSet<OfTenant>,
) -> BTreeMap<(TenantId, OutputId), (&'a OfTenant, Version)> {
    #[derive(serde::Deserialize)]
    struct Reply {
        #[serde(default)]
        offloaded: Vec<OffloadedResult>,
    }
    let mut outputs = BTreeMap::new();
    for (branch, rebuilt) in branches.iter().filter(|(branch, _)| needed.contains(branch)) {
        for recorded in &rebuilt.turns {
            let before = Version(recorded.turn.version.0.saturating_sub(1));
            let offloaded =
                serde_json::from_str(&recorded.reply).map_or(vec![], |Reply { offloaded }| offloaded);
            for OffloadedResult { output, .. } in offloaded {
                outputs.insert((branch.0.clone(), output), (branch, before));
            }
        }
    }
    outputs
}
