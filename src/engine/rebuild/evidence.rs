//! What the blobs of a bucket say, before any of it is believed.

use super::RebuildReport;
use super::outputs::{self, FoundOutput};
use crate::clock::Micros;
use crate::codec::digest;
use crate::codec::manifest::{self, Manifest};
use crate::codec::segment::{self, BranchLine, Header};
use crate::engine::Error;
use crate::engine::fsck::Finding;
use crate::engine::keys::{self, Kind, LedgerEntry};
use crate::limits::SEGMENT_RAW_BYTES_MAX;
use crate::model::{BranchId, OutputId, Segment, SessionId, TenantId, Version, WireFormat};
use crate::store::BlobStore;
use crate::store::meta::RecordedTurn;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A segment that was read: its row and its turns.
pub(super) struct Found {
    pub(super) row: Segment,
    pub(super) turns: Vec<RecordedTurn>,
}

/// All that the blobs say.
#[derive(Default)]
pub(super) struct Evidence {
    /// Branches, each with its parent.
    pub(super) lines: BTreeMap<(TenantId, BranchId), (BranchLine, Option<BranchId>)>,
    /// Branches that are certainly committed: a manifest lists them, or another
    /// branch continues them.
    pub(super) named: BTreeSet<(TenantId, BranchId)>,
    /// The branch that a session was on at a version, as its manifests say.
    pub(super) positions: BTreeMap<(TenantId, SessionId), Vec<(Version, BranchId)>>,
    pub(super) formats: HashMap<(TenantId, SessionId), WireFormat>,
    pub(super) segments: BTreeMap<(TenantId, BranchId), Vec<Found>>,
    /// The newest manifest of each session, with its key.
    pub(super) manifests: BTreeMap<(TenantId, SessionId), (Manifest, String)>,
    /// Keys of all blobs of a session.
    pub(super) blobs: BTreeMap<(TenantId, SessionId), Vec<String>>,
    pub(super) deleted: BTreeMap<(TenantId, SessionId), Micros>,
    /// Tool outputs, each with the blobs that say that they are it.
    pub(super) outputs: BTreeMap<(TenantId, OutputId), Vec<FoundOutput>>,
}

/// Reads all blobs.
pub(super) async fn gather(
    blobs: &dyn BlobStore,
    report: &mut RebuildReport,
    progress: &mut (impl FnMut(u64) + Send),
) -> Result<Evidence, Error> {
    const BATCH: usize = 1000;
    let mut evidence = Evidence::default();
    let mut after: Option<String> = None;
    loop {
        let listed = blobs.list("", after.as_deref(), BATCH).await.map_err(Error::of_objects)?;
        let Some(last) = listed.last() else { return Ok(evidence) };
        after = Some(last.key.clone());
        for blob in listed {
            let is_ledger = blob.key.starts_with(keys::LEDGER);
            let kind = keys::kind(&blob.key);
            if !is_ledger && kind.is_none() {
                continue;
            }
            let get = async || blobs.get(&blob.key).await.map_err(Error::of_objects);
            let read = match kind {
                None => evidence.add_ledger_entry(&get().await?),
                Some(Kind::Segment) => evidence.add_segment(&blob.key, &get().await?),
                Some(Kind::Manifest) => evidence.add_manifest(&blob.key, &get().await?),
                Some(Kind::Output) => {
                    outputs::read(blobs, &blob).await?.map(|found| evidence.add_output(found))
                }
            };
            if let Err(problem) = read {
                report.findings.push(Finding { place: blob.key, problem });
            }
            report.blobs += 1;
            progress(report.blobs);
        }
    }
}

/// What grows from one manifest of a session to the next. Notes come and go without a
/// change of the session itself, but each seal leaves more sealed. One that came to nothing
/// was written by an earlier generation or, within one, at an earlier time.
fn age(manifest: &Manifest) -> impl Ord + use<> {
    let Manifest { version, config_revision, window_revision, sealed, writer, written_at, .. } = *manifest;
    (version, config_revision, window_revision, sealed, writer, written_at)
}

impl Evidence {
    /// The session that made a branch.
    pub(super) fn session(&self, tenant: &TenantId, branch: &BranchId) -> Option<&SessionId> {
        self.lines.get(&(tenant.clone(), branch.clone())).map(|(line, _)| &line.session)
    }

    /// All sessions that are more than the owner of a branch that others
    /// continue.
    pub(super) fn sessions(&self) -> BTreeSet<(TenantId, SessionId)> {
        self.blobs.keys().cloned().collect()
    }

    /// Versions that certainly lie on a branch.
    pub(super) fn certain_places(&self) -> impl Iterator<Item = (&TenantId, &SessionId, &BranchId, Version)> {
        let begun = self.named.iter().filter_map(|id| {
            let (line, _) = self.lines.get(id)?;
            Some((&id.0, &line.session, &line.branch, line.first_version))
        });
        let reached = self.positions.iter().flat_map(|((tenant, session), positions)| {
            positions.iter().map(move |(version, branch)| (tenant, session, branch, *version))
        });
        begun.chain(reached)
    }

    fn add_output(&mut self, found: FoundOutput) {
        let tenant = &found.about.tenant;
        let session = (tenant.clone(), found.about.session.clone());
        self.blobs.entry(session).or_default().push(found.key.clone());
        self.outputs.entry((tenant.clone(), found.about.output.clone())).or_default().push(found);
    }

    fn add_ledger_entry(&mut self, body: &[u8]) -> Result<(), String> {
        let entry: LedgerEntry = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        self.deleted.insert((entry.tenant, entry.session), entry.deleted_at);
        Ok(())
    }

    fn add_manifest(&mut self, key: &str, body: &[u8]) -> Result<(), String> {
        let manifest = manifest::decode(body).map_err(|error| error.to_string())?;
        for (line, parent) in &manifest.branches {
            let id = (manifest.tenant.clone(), line.branch.clone());
            self.named.insert(id.clone());
            self.lines.insert(id, (line.clone(), parent.clone()));
        }
        let id = (manifest.tenant.clone(), manifest.session.clone());
        let position = (manifest.version, manifest.branch.clone());
        self.positions.entry(id.clone()).or_default().push(position);
        self.blobs.entry(id.clone()).or_default().push(key.to_owned());
        let is_newest = |(other, _): &(Manifest, String)| age(other) < age(&manifest);
        if self.manifests.get(&id).is_none_or(is_newest) {
            self.manifests.insert(id, (manifest, key.to_owned()));
        }
        Ok(())
    }

    fn add_segment(&mut self, key: &str, body: &Bytes) -> Result<(), String> {
        let decoded =
            segment::decode(body, SEGMENT_RAW_BYTES_MAX as u64).map_err(|error| error.to_string())?;
        let header: Header = decoded.header().map_err(|error| error.to_string())?;
        let Some(tip) = header.lineage.last() else { return Err("its lineage is empty".to_owned()) };
        let branch = tip.branch.clone();
        let session = (header.tenant.clone(), tip.session.clone());
        self.blobs.entry(session.clone()).or_default().push(key.to_owned());
        self.formats.insert(session, header.wire_format);
        let mut parent = None;
        for line in &header.lineage {
            let id = (header.tenant.clone(), line.branch.clone());
            if line.branch != branch {
                self.named.insert(id.clone());
            }
            self.lines.insert(id, (line.clone(), parent));
            parent = Some(line.branch.clone());
        }
        let mut turns = Vec::with_capacity(header.turns.len());
        for line in &header.turns {
            let own =
                decoded.entries.iter().filter(|entry| (line.first_seq..=line.last_seq).contains(&entry.seq));
            let own: Vec<_> = own.cloned().collect();
            let reply = line.reply.get().to_owned();
            turns.push(RecordedTurn { turn: line.to_turn(&branch, &own), reply });
        }
        let (Some(first), Some(last)) = (turns.first(), turns.last()) else {
            return Err("it has no turns".to_owned());
        };
        let row = Segment {
            branch: branch.clone(),
            first_seq: header.first_seq,
            last_seq: header.last_seq,
            first_version: first.turn.version,
            last_version: last.turn.version,
            key: key.to_owned(),
            sha256: digest::sha256(body),
            stored_bytes: body.len() as u64,
            raw_bytes: decoded.raw_bytes(),
            format: header.format,
            created_at: last.turn.created_at,
        };
        self.segments.entry((header.tenant, branch)).or_default().push(Found { row, turns });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::manifest::Config;
    use crate::model::{CompressionPath, GenerationId, Labels, ModelProfile, Note};

    fn manifest(sealed: u64, writer: i64, written_at: i64, notes: &[&str]) -> Manifest {
        let note = |name: &&str| Note {
            name: (*name).to_owned(),
            text: "x".to_owned(),
            updated_at: Micros(written_at),
        };
        Manifest {
            turnkeep: "manifest".to_owned(),
            format: manifest::FORMAT,
            tenant: TenantId::parse("t").unwrap(),
            session: SessionId::parse("s").unwrap(),
            config: Config {
                format: WireFormat::Opaque,
                path: CompressionPath::default(),
                profile: ModelProfile::default(),
                labels: Labels::new(),
                strip_rules: vec![],
                pin_statements: None,
                forked_from: None,
                continued_from: None,
                has_other_counts: false,
            },
            created_at: Micros(0),
            version: Version(7),
            branch: BranchId::parse("0123456789abcdef0123456789abcdef").unwrap(),
            config_revision: 1,
            window_revision: 1,
            sealed,
            written_at: Micros(written_at),
            branches: vec![],
            preambles: vec![],
            window_states: vec![],
            notes: notes.iter().map(note).collect(),
            writer: GenerationId(writer),
        }
    }

    /// The names of the notes that come back, in whatever order the blobs are listed.
    fn noted(manifests: [&Manifest; 2]) -> [Vec<String>; 2] {
        [[0, 1], [1, 0]].map(|order| {
            let mut evidence = Evidence::default();
            for at in order {
                evidence.add_manifest(&at.to_string(), &manifest::encode(manifests[at]).unwrap()).unwrap();
            }
            let (newest, _) = evidence.manifests.into_values().next().unwrap();
            newest.notes.into_iter().map(|note| note.name).collect()
        })
    }

    #[test]
    fn of_manifests_of_one_version_that_comes_back_which_was_written_last() {
        let old = manifest(3, 5, 90, &["kept", "deleted"]);
        // By more that is sealed, by a later generation, by a later time of one.
        for new in
            [manifest(7, 4, 10, &["kept"]), manifest(3, 6, 10, &["kept"]), manifest(3, 5, 91, &["kept"])]
        {
            assert_eq!(noted([&old, &new]), [["kept"]; 2].map(|names| names.map(str::to_owned).to_vec()));
        }
        let none = manifest(4, 5, 91, &[]);
        assert_eq!(noted([&old, &none]), [const { Vec::<String>::new() }; 2]);
    }
}
