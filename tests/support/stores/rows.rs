//! Rows of sessions, as the engine would write them.

use bytes::Bytes;
use turnkeep::clock::Micros;
use turnkeep::codec::{digest, frame, line};
use turnkeep::entropy::Entropy;
use turnkeep::model::{
    Branch, BranchId, CallState, CompressionPath, Digest, Entry, EntryKind, GenerationId, Labels,
    ModelProfile, Preamble, RequestId, Segment, Seq, Session, SessionId, TenantId, Turn, TurnKind,
    UnansweredCall, Usage, Version, WireFormat,
};
use turnkeep::store::MetaStore;
use turnkeep::store::meta::{
    BranchKey, CommitOutcome, CreateOutcome, Expected, JournalRow, NewSeal, NewSession, NewTurn,
    RecordedTurn, SealedRun, SessionKey, TurnEntries,
};

/// The time at which a version was made.
pub(crate) fn at(version: Version) -> Micros {
    Micros(1_700_000_000_000_000 + i64::try_from(version.0).unwrap())
}

pub(crate) fn tenant() -> TenantId {
    TenantId::default_tenant()
}

pub(crate) fn key(session: &str) -> SessionKey {
    SessionKey { tenant: tenant(), session: SessionId::parse(session).unwrap() }
}

pub(crate) fn branch_id(id: &str) -> BranchId {
    BranchId::parse(id).unwrap()
}

pub(crate) async fn generation(meta: &dyn MetaStore) -> GenerationId {
    leased(meta, Micros(i64::MAX)).await
}

/// A new generation with a lease.
pub(crate) async fn leased(meta: &dyn MetaStore, until: Micros) -> GenerationId {
    let id = GenerationId(i64::from(u32::from_be_bytes(Entropy::from_os().bytes())));
    meta.register_generation(id, until).await.unwrap();
    id
}

/// A branch of a session, with what a writer to it would know.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) key: SessionKey,
    pub(crate) session: Session,
    pub(crate) branch: Branch,
    pub(crate) preamble: Option<Preamble>,
    pub(crate) tip: RecordedTurn,
    pub(crate) config_revision: u64,
    pub(crate) fence: u64,
    /// Journal rows that were committed and not sealed yet.
    pub(crate) journal: Vec<JournalRow>,
}

impl Line {
    /// A session that is not created yet, with every field filled in.
    pub(crate) fn new(session: &str) -> Self {
        let key = key(session);
        let session = Session {
            id: key.session.clone(),
            format: WireFormat::Opaque,
            path: CompressionPath::Batch,
            profile: ModelProfile {
                model: "m".into(),
                context_window_tokens: 1000,
                ..ModelProfile::default()
            },
            labels: Labels::from([("team".into(), "blue".into()), ("env".into(), session.into())]),
            strip_rules: vec!["claude-code".into()],
            pin_statements: Some(false),
            forked_from: None,
            continued_from: None,
            has_other_counts: false,
            created_at: at(Version(0)),
        };
        let branch = Branch {
            id: branch_id(&format!("{}-main", session.id)),
            session: session.id.clone(),
            parent: None,
            base_version: Version(0),
            base_seq: Seq(0),
            first_version: Version(0),
            sealed_seq: Seq(0),
            sealed_version: Version(0),
            created_at: session.created_at,
        };
        let preamble = Preamble {
            revision: 1,
            payload: Bytes::from_static(b" [\"be brief\"]\n"),
            tokens: 3,
            since_version: Version(0),
        };
        let turn = genesis(&session, &branch);
        Self {
            key,
            session,
            branch,
            preamble: Some(preamble),
            tip: RecordedTurn { turn, reply: "{}".to_owned() },
            config_revision: 1,
            fence: 0,
            journal: vec![],
        }
    }

    /// Creates a session.
    pub(crate) async fn create(meta: &dyn MetaStore, session: &str) -> Self {
        let line = Self::new(session);
        assert_eq!(meta.create_session(line.to_create()).await.unwrap(), CreateOutcome::Created);
        line
    }

    pub(crate) fn to_create(&self) -> NewSession {
        NewSession {
            tenant: self.key.tenant.clone(),
            session: self.session.clone(),
            branch: self.branch.clone(),
            turn: self.tip.clone(),
            preamble: self.preamble.clone(),
            source: None,
            window_state: (0, 0),
            opening: None,
            calibration: None,
        }
    }

    /// A fork of the newest turn that is not created yet.
    pub(crate) fn fork(&self, session: &str) -> (Self, NewSession) {
        let mut fork = Self::new(session);
        let base = &self.tip.turn;
        fork.branch = Branch {
            parent: Some(base.branch.clone()),
            base_version: base.version,
            base_seq: base.last_seq,
            first_version: base.version.next(),
            sealed_seq: base.last_seq,
            sealed_version: base.version,
            ..fork.branch
        };
        let mut turn = turn_of(base, &fork.branch.id, "fork", &[]);
        turn.kind = TurnKind::Fork;
        turn.base_version = base.version;
        turn.receipt = digest::of_turn(base.receipt, &turn);
        fork.tip = RecordedTurn { turn, reply: "{}".to_owned() };
        let new = NewSession {
            source: Some((self.key.session.clone(), self.branch.id.clone())),
            ..fork.to_create()
        };
        (fork, new)
    }

    /// Creates a fork of the newest turn.
    pub(crate) async fn create_fork(&self, meta: &dyn MetaStore, session: &str) -> Self {
        let (fork, new) = self.fork(session);
        assert_eq!(meta.create_session(new).await.unwrap(), CreateOutcome::Created);
        fork
    }

    pub(crate) fn branch_key(&self) -> BranchKey {
        BranchKey { tenant: self.key.tenant.clone(), branch: self.branch.id.clone() }
    }

    pub(crate) fn expected(&self) -> Expected {
        Expected {
            version: self.tip.turn.version,
            branch: self.branch.id.clone(),
            config_revision: self.config_revision,
            fence: self.fence,
            receipt: self.tip.turn.receipt,
        }
    }

    /// The next turn, with one entry in the journal.
    pub(crate) fn turn(&self, request: &str) -> NewTurn {
        let base = &self.tip.turn;
        let payload = Bytes::from(format!(r#"{{"request":"{request}"}}"#));
        let entry = Entry {
            seq: base.last_seq.next(),
            version: base.version.next(),
            at: at(base.version.next()),
            kind: EntryKind::Message,
            tokens: 5,
            payload,
        };
        let mut text = Vec::new();
        line::write(&mut text, &entry);
        let turn = turn_of(base, &self.branch.id, request, &[entry]);
        let journal = JournalRow {
            version: turn.version,
            first_seq: turn.first_seq,
            last_seq: turn.last_seq,
            raw_bytes: text.len() as u64,
            body: frame::compress(&text).unwrap(),
            created_at: turn.created_at,
        };
        NewTurn {
            key: self.key.clone(),
            expected: self.expected(),
            turn: RecordedTurn { turn, reply: format!(r#"{{"of":"{request}"}}"#) },
            entries: TurnEntries::Journal(journal),
            branch: None,
            window_state: None,
            revise_window: false,
            journal_bytes_max: u64::MAX >> 1,
            outputs: vec![],
        }
    }

    /// Takes note of a turn that was committed.
    pub(crate) fn advance(&mut self, new: &NewTurn) {
        if let TurnEntries::Journal(row) = &new.entries {
            self.journal.push(row.clone());
        }
        self.tip = new.turn.clone();
    }

    /// Commits the next turn.
    pub(crate) async fn append(&mut self, meta: &dyn MetaStore, request: &str) -> RecordedTurn {
        let new = self.turn(request);
        assert_eq!(meta.commit_turn(new.clone()).await.unwrap(), CommitOutcome::Committed);
        self.advance(&new);
        new.turn
    }

    /// A segment of the first journal rows, which are then thought sealed.
    pub(crate) fn sealed(&mut self, rows: usize, blob: &str, generation: GenerationId) -> NewSeal {
        let taken: Vec<_> = self.journal.drain(..rows).collect();
        let (first, last) = (taken.first().unwrap(), taken.last().unwrap());
        let segment = Segment {
            branch: self.branch.id.clone(),
            first_seq: first.first_seq,
            last_seq: last.last_seq,
            first_version: first.version,
            last_version: last.version,
            key: blob.to_owned(),
            sha256: digest::sha256(blob.as_bytes()),
            stored_bytes: 100,
            raw_bytes: 1_000,
            format: 1,
            created_at: at(last.version),
        };
        let expected_sealed_version = self.branch.sealed_version;
        self.branch.sealed_version = segment.last_version;
        self.branch.sealed_seq = segment.last_seq;
        NewSeal {
            key: self.branch_key(),
            session: self.key.session.clone(),
            run: SealedRun {
                segment,
                expected_sealed_version,
                journal_bytes: taken.iter().map(|row| row.body.len() as u64).sum(),
                manifest: None,
                erase_not_before: at(last.version).plus(std::time::Duration::from_secs(1)),
                generation,
            },
        }
    }

    /// Bytes that the journal rows take.
    pub(crate) fn journal_bytes(&self) -> u64 {
        self.journal.iter().map(|row| row.body.len() as u64).sum()
    }
}

/// The turn that follows another, with every field filled in.
pub(crate) fn turn_of(base: &Turn, branch: &BranchId, request: &str, entries: &[Entry]) -> Turn {
    let version = base.version.next();
    let prefix_digest = entries.iter().fold(base.prefix_digest, |digest, entry| {
        digest::prefix(digest, turnkeep::format::canonical_digest(&entry.payload))
    });
    let tokens = entries.iter().map(|entry| entry.tokens).sum();
    let call = UnansweredCall {
        call_id: "c1".into(),
        name: "tool".into(),
        kind: String::new(),
        seq: base.last_seq.next(),
        index: 1,
    };
    let mut turn = Turn {
        branch: branch.clone(),
        version,
        kind: TurnKind::Persist,
        base_version: Version(0),
        first_seq: base.last_seq.next(),
        last_seq: Seq(base.last_seq.0 + entries.len() as u64),
        request_id: RequestId::parse(request).unwrap(),
        request_digest: digest::sha256(request.as_bytes()),
        entries_digest: digest::of_entries(entries),
        receipt: Digest::default(),
        prefix_digest,
        calls: CallState { pending: vec![call], interrupted: vec![], in_model_run: true },
        tokens,
        log_tokens: base.log_tokens + tokens,
        payload_bytes: entries.iter().map(|entry| entry.payload.len() as u64).sum(),
        usage: Some(Usage { model: "m".into(), input_tokens: 7, output_tokens: 2, ..Usage::default() }),
        score: Some(0.25),
        step_kind: "plan".into(),
        created_at: at(version),
    };
    turn.receipt = digest::of_turn(base.receipt, &turn);
    turn
}

fn genesis(session: &Session, branch: &Branch) -> Turn {
    Turn {
        branch: branch.id.clone(),
        version: Version(0),
        kind: TurnKind::Genesis,
        base_version: Version(0),
        first_seq: Seq(1),
        last_seq: Seq(0),
        request_id: RequestId::parse("turnkeep:genesis").unwrap(),
        request_digest: Digest::default(),
        entries_digest: Digest::default(),
        receipt: digest::genesis(&session.id),
        prefix_digest: Digest::default(),
        calls: CallState::default(),
        tokens: 0,
        log_tokens: 0,
        payload_bytes: 0,
        usage: None,
        score: None,
        step_kind: String::new(),
        created_at: session.created_at,
    }
}
