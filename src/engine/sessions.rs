//! Creating, reading, listing and changing sessions.

use super::{Engine, Error, persist};
use crate::format;
use crate::limits::{
    APPEND_ATTEMPTS, LABEL_KEY_CHARS_MAX, LABEL_VALUE_BYTES_MAX, LABELS_MAX, MODEL_NAME_BYTES_MAX,
    PREAMBLE_BYTES_MAX, STRIP_RULES_MAX, TOKENS_MAX,
};
use crate::model::{
    Branch, BranchId, CompressionPath, Head, Labels, ModelProfile, Preamble, Seq, Session, SessionId,
    TenantId, Turn, Version, WireFormat,
};
use crate::store::meta::{
    BranchKey, CommitOutcome, CreateOutcome, NewSession, RecordedTurn, SessionKey, SessionQuery,
    SessionUpdate, Tip,
};
use crate::tokens::{TokenCounter, catalogue};
use bytes::Bytes;
use std::sync::Arc;

/// Configuration of a new session.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// Wire format of its entries.
    pub format: WireFormat,
    /// Which compression its windows get.
    pub path: CompressionPath,
    /// Limits of its model.
    pub profile: ModelProfile,
    /// The caller's labels.
    pub labels: Labels,
    /// Strip rule sets that are applied to what is persisted.
    pub strip_rules: Vec<String>,
    /// Whether statements that leave its windows are pinned, if not as the service does.
    pub pin_statements: Option<bool>,
    /// The preamble; none if empty.
    pub preamble: Bytes,
}

/// A change of configuration: what is set takes the place of what was.
#[derive(Clone, Debug, Default)]
pub struct SessionChange {
    /// The etag that the session must have.
    pub etag: Option<String>,
    /// Which compression its windows get.
    pub path: Option<CompressionPath>,
    /// Limits of its model.
    pub profile: Option<ModelProfile>,
    /// The caller's labels.
    pub labels: Option<Labels>,
    /// Strip rule sets.
    pub strip_rules: Option<Vec<String>>,
    /// Whether statements that leave its windows are pinned, or nothing for as the
    /// service does.
    #[expect(clippy::option_option, reason = "one says whether it changes, the other whether it is set")]
    pub pin_statements: Option<Option<bool>>,
    /// The preamble.
    pub preamble: Option<Bytes>,
}

/// A session as callers see it.
#[derive(Clone, Debug)]
pub struct SessionView {
    /// Its configuration.
    pub session: Session,
    /// Its head.
    pub head: Head,
    /// Seq of its newest entry.
    pub head_seq: Seq,
    /// Tokens of all entries of its log.
    pub log_tokens: u64,
    /// Its preamble, if it was asked for and there is one.
    pub preamble: Option<Preamble>,
    /// Bytes that its own turns take in storage, if that was asked for.
    pub stored_bytes: Option<u64>,
}

impl SessionView {
    /// Revision of the configuration, as callers see it.
    pub fn etag(&self) -> String {
        etag(self.head.config_revision)
    }

    fn new(tip: Tip, preamble: Option<Preamble>, stored_bytes: Option<u64>) -> Self {
        let Tip { session, head, turn, .. } = tip;
        Self { session, head, head_seq: turn.last_seq, log_tokens: turn.log_tokens, preamble, stored_bytes }
    }
}

fn etag(config_revision: u64) -> String {
    format!("\"{config_revision}\"")
}

/// A page of sessions.
#[derive(Clone, Debug)]
pub struct SessionPage {
    /// The sessions.
    pub sessions: Vec<SessionView>,
    /// Whether there are more.
    pub more: bool,
}

/// A page of turns.
#[derive(Clone, Debug)]
pub struct TurnPage {
    /// The turns, the newest first.
    pub turns: Vec<Turn>,
    /// Whether there are more.
    pub more: bool,
}

impl Engine {
    /// Creates a session.
    pub async fn create_session(&self, key: SessionKey, config: SessionConfig) -> Result<SessionView, Error> {
        let engine = self.clone();
        self.detached(async move { engine.create_detached(key, config).await }).await
    }

    async fn create_detached(&self, key: SessionKey, config: SessionConfig) -> Result<SessionView, Error> {
        let (session, preamble) = self.configured(&key, config)?;
        let new = self.new_session(&key, session, preamble)?;
        match self.inner.meta.create_session(new).await? {
            CreateOutcome::Created => self.written_session(&key).await,
            CreateOutcome::Taken { deleted } => Err(Error::SessionExists { session: key.session, deleted }),
            CreateOutcome::SourceGone => Err(Error::internal("a session without a source lost it")),
        }
    }

    /// A new session of that configuration, and its preamble.
    pub(super) fn configured(
        &self,
        key: &SessionKey,
        config: SessionConfig,
    ) -> Result<(Session, Option<Preamble>), Error> {
        let SessionConfig { format, path, profile, labels, strip_rules, pin_statements, preamble } = config;
        let profile = self.resolve_profile(&profile)?;
        check_labels(&labels)?;
        self.check_strip_rules(&strip_rules)?;
        let session = Session {
            id: key.session.clone(),
            format,
            path,
            profile,
            labels,
            strip_rules,
            pin_statements,
            forked_from: None,
            continued_from: None,
            has_other_counts: false,
            created_at: self.now(),
        };
        let preamble =
            if preamble.is_empty() { None } else { Some(new_preamble(&session, preamble, 1, Version(0))?) };
        Ok((session, preamble))
    }

    /// The first rows of a session whose log is empty.
    pub(super) fn new_session(
        &self,
        key: &SessionKey,
        session: Session,
        preamble: Option<Preamble>,
    ) -> Result<NewSession, Error> {
        let now = session.created_at;
        let branch = self.new_branch_id()?;
        let turn = persist::genesis(&key.session, branch.clone(), now);
        let branch = Branch {
            id: branch,
            session: key.session.clone(),
            parent: None,
            base_version: Version(0),
            base_seq: Seq(0),
            first_version: Version(0),
            sealed_seq: Seq(0),
            sealed_version: Version(0),
            created_at: now,
        };
        Ok(NewSession {
            tenant: key.tenant.clone(),
            session,
            branch,
            turn: RecordedTurn { turn, reply: "{}".to_owned() },
            preamble,
            source: None,
            window_state: (0, 0),
            opening: None,
            calibration: None,
        })
    }

    /// A fresh id for a session.
    pub fn mint_session_id(&self) -> Result<SessionId, Error> {
        SessionId::parse(&self.inner.entropy.id(self.now())).map_err(|_| Error::internal("mint a session id"))
    }

    pub(super) fn new_branch_id(&self) -> Result<BranchId, Error> {
        BranchId::parse(&self.inner.entropy.id(self.now())).map_err(|_| Error::internal("mint a branch id"))
    }

    /// Returns a session that was just written.
    pub(super) async fn written_session(&self, key: &SessionKey) -> Result<SessionView, Error> {
        self.get_session(key).await.map_err(Error::after_write)
    }

    /// Returns a session with its preamble.
    pub async fn get_session(&self, key: &SessionKey) -> Result<SessionView, Error> {
        let tip = self.tip(key, None).await?;
        let preamble = match tip.head.preamble_revision {
            0 => None,
            revision => Some(self.preamble(key, revision, tip.head.version).await?.as_ref().clone()),
        };
        let blob_bytes = self.inner.meta.blob_bytes(key).await?;
        let stored_bytes = blob_bytes.saturating_add(tip.head.journal_bytes);
        Ok(SessionView::new(tip, preamble, Some(stored_bytes)))
    }

    /// The preamble of a revision that was current at a version.
    pub(super) async fn preamble(
        &self,
        key: &SessionKey,
        revision: u64,
        version: Version,
    ) -> Result<Arc<Preamble>, Error> {
        let cache = &self.inner.caches.preambles;
        if let Some(preamble) = cache.get(&(key.clone(), revision)) {
            return Ok(preamble);
        }
        let preamble = self.inner.meta.preamble(key, version).await?;
        let preamble = Arc::new(preamble.ok_or_else(|| Error::internal("the preamble is not there"))?);
        cache.insert((key.clone(), preamble.revision), preamble.clone());
        Ok(preamble)
    }

    /// Lists sessions, the newest first.
    pub async fn list_sessions(
        &self,
        tenant: &TenantId,
        mut query: SessionQuery,
    ) -> Result<SessionPage, Error> {
        check_labels(&query.labels).map_err(|error| error.within("filter"))?;
        let limit = query.limit;
        query.limit = limit.saturating_add(1);
        let mut tips = self.inner.meta.list_sessions(tenant, &query).await?;
        let more = tips.len() > limit as usize;
        tips.truncate(limit as usize);
        Ok(SessionPage {
            sessions: tips.into_iter().map(|tip| SessionView::new(tip, None, None)).collect(),
            more,
        })
    }

    /// Changes a session's configuration.
    pub async fn update_session(&self, key: SessionKey, change: SessionChange) -> Result<SessionView, Error> {
        let engine = self.clone();
        self.detached(async move { engine.update_detached(key, change).await }).await
    }

    async fn update_detached(&self, key: SessionKey, change: SessionChange) -> Result<SessionView, Error> {
        for _ in 0..APPEND_ATTEMPTS {
            let tip = self.tip(&key, None).await?;
            let current = etag(tip.head.config_revision);
            if let Some(expected) = change.etag.clone()
                && expected != current
            {
                return Err(Error::EtagMismatch { session: key.session, expected, current });
            }
            let update = self.session_update(&key, &tip, &change)?;
            let outcome = self.inner.meta.update_session(update).await?;
            self.inner.caches.tips.invalidate(&key);
            if outcome == CommitOutcome::Committed {
                return self.written_session(&key).await;
            }
        }
        Err(Error::Contention { session: key.session, attempts: APPEND_ATTEMPTS })
    }

    fn session_update(
        &self,
        key: &SessionKey,
        tip: &Tip,
        change: &SessionChange,
    ) -> Result<SessionUpdate, Error> {
        let mut session = tip.session.clone();
        if let Some(profile) = &change.profile {
            session.profile = self.resolve_profile(profile)?;
        }
        let has_counts = tip.turn.last_seq > Seq(0) || tip.head.preamble_revision > 0;
        session.has_other_counts |= has_counts && session.tokenizer() != tip.session.tokenizer();
        session.path = change.path.unwrap_or(session.path);
        if let Some(labels) = &change.labels {
            check_labels(labels)?;
            session.labels.clone_from(labels);
        }
        if let Some(rules) = &change.strip_rules {
            self.check_strip_rules(rules)?;
            session.strip_rules.clone_from(rules);
        }
        session.pin_statements = change.pin_statements.unwrap_or(session.pin_statements);
        let preamble = match &change.preamble {
            None => None,
            Some(payload) => {
                let revision = tip.head.preamble_revision + 1;
                Some(new_preamble(&session, payload.clone(), revision, tip.head.version)?)
            }
        };
        // What a model costs is not seen in a window.
        let of_window = |session: &Session| ModelProfile { prices: None, ..session.profile.clone() };
        let revise_window = preamble.is_some()
            || of_window(&session) != of_window(&tip.session)
            || session.path != tip.session.path;
        Ok(SessionUpdate {
            key: key.clone(),
            expected_revision: tip.head.config_revision,
            session,
            preamble,
            revise_window,
            at: self.now(),
        })
    }

    /// Lists a session's turns, the newest first: those before a version, or
    /// all.
    pub async fn list_turns(
        &self,
        key: &SessionKey,
        before: Option<Version>,
        limit: u32,
    ) -> Result<TurnPage, Error> {
        let tip = self.tip(key, None).await?;
        let mut last =
            before.map_or(tip.head.version.0, |before| before.0.saturating_sub(1)).min(tip.head.version.0);
        let mut turns = Vec::new();
        // Versions of a session lie on its branches one after another, and below
        // its first branch on those that it was forked from.
        let own = self.inner.meta.branches_of_session(key).await?;
        let Some(oldest) = own.first() else { return Ok(TurnPage { turns, more: false }) };
        let oldest = BranchKey { tenant: key.tenant.clone(), branch: oldest.id.clone() };
        let inherited = self.lineage(&oldest).await?;
        let inherited = inherited.spans().split_last().map_or(&[][..], |(_, rest)| rest);
        // What the sources rewound is none of this session's versions.
        let inherited = inherited.iter().map(|span| (&span.branch, span.first_version, span.last_version));
        let own = own.iter().map(|branch| (&branch.id, branch.first_version, None));
        let ranges: Vec<_> = inherited.chain(own).collect();
        let wanted = limit as usize + 1;
        for (branch, first, end) in ranges.into_iter().rev() {
            last = end.map_or(last, |end| last.min(end.0));
            if turns.len() >= wanted || first.0 > last {
                continue;
            }
            let branch = BranchKey { tenant: key.tenant.clone(), branch: branch.clone() };
            let missing = u32::try_from(wanted - turns.len()).unwrap_or(u32::MAX);
            let found = self.inner.meta.turns(&branch, first.max(Version(1)), Version(last), missing).await?;
            turns.extend(found.into_iter().rev().map(|recorded| recorded.turn));
            last = first.0.saturating_sub(1);
        }
        let more = turns.len() == wanted;
        turns.truncate(limit as usize);
        Ok(TurnPage { turns, more })
    }

    /// The profile that the settings name, or the one that was given, with what
    /// the catalogue knows of its model.
    pub(super) fn resolve_profile(&self, given: &ModelProfile) -> Result<ModelProfile, Error> {
        given
            .check_limits()
            .map_err(|(field, problem)| Error::invalid(format!("profile.{field}"), problem))?;
        let name_only = ModelProfile {
            model: given.model.clone(),
            tool_result_limit: given.tool_result_limit,
            prices: given.prices.clone(),
            media_limits: given.media_limits,
            ..ModelProfile::default()
        };
        if *given == name_only && !given.model.is_empty() {
            if let Some(named) = self.inner.options.profiles.get(&given.model) {
                let tool_result_limit = given.tool_result_limit.or(named.tool_result_limit);
                let prices = given.prices.clone().or_else(|| named.prices.clone());
                let media_limits = given.media_limits.or(named.media_limits);
                return Ok(ModelProfile {
                    tool_result_limit,
                    media_limits,
                    prices,
                    ..catalogue::resolve(named)
                });
            }
            if catalogue::find(&given.model).is_none() {
                let problem = "is not a profile in the service's settings, and not a model of its catalogue; \
                               give context_window_tokens with it";
                return Err(Error::invalid("profile.model", problem));
            }
        }
        if given.model.len() > MODEL_NAME_BYTES_MAX {
            let problem =
                format!("has {} bytes; at most {MODEL_NAME_BYTES_MAX} are allowed", given.model.len());
            return Err(Error::invalid("profile.model", problem));
        }
        for (field, tokens) in [
            ("profile.context_window_tokens", given.context_window_tokens),
            ("profile.max_output_tokens", given.max_output_tokens),
        ] {
            if tokens > TOKENS_MAX {
                return Err(Error::invalid(field, format!("is {tokens}; at most {TOKENS_MAX} are allowed")));
            }
        }
        Ok(catalogue::resolve(given))
    }

    fn check_strip_rules(&self, names: &[String]) -> Result<(), Error> {
        if names.len() > STRIP_RULES_MAX {
            let problem = format!("has {} names; at most {STRIP_RULES_MAX} are allowed", names.len());
            return Err(Error::invalid("strip_rules", problem));
        }
        match names.iter().position(|name| !self.inner.options.strip_rules.contains(name)) {
            Some(i) => Err(Error::invalid(format!("strip_rules[{i}]"), "is not a rule set of this service")),
            None => Ok(()),
        }
    }
}

pub(super) fn new_preamble(
    session: &Session,
    payload: Bytes,
    revision: u64,
    since_version: Version,
) -> Result<Preamble, Error> {
    let field = "preamble.payload";
    if payload.len() > PREAMBLE_BYTES_MAX {
        let problem = format!("has {} bytes; at most {PREAMBLE_BYTES_MAX} are allowed", payload.len());
        return Err(Error::invalid(field, problem));
    }
    format::check_value(&payload).map_err(|error| Error::invalid(field, error.to_string()))?;
    let tokens =
        TokenCounter::new(session.format, session.tokenizer()).count_text(&String::from_utf8_lossy(&payload));
    Ok(Preamble { revision, payload, tokens, since_version })
}

pub(super) fn check_labels(labels: &Labels) -> Result<(), Error> {
    if labels.len() > LABELS_MAX {
        return Err(Error::invalid(
            "labels",
            format!("has {} labels; at most {LABELS_MAX} are allowed", labels.len()),
        ));
    }
    for (key, value) in labels {
        let is_key = !key.is_empty()
            && key.len() <= LABEL_KEY_CHARS_MAX
            && key.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._/-".contains(&b));
        if !is_key {
            // Errors travel in headers, which have little room.
            let key: String = key.chars().take(LABEL_KEY_CHARS_MAX).collect();
            let problem =
                format!("key {key:?} is not 1 to {LABEL_KEY_CHARS_MAX} characters of `a-z 0-9 . _ / -`");
            return Err(Error::invalid("labels", problem));
        }
        if value.len() > LABEL_VALUE_BYTES_MAX || value.contains('\0') {
            let problem = format!("value of {key:?} is not up to {LABEL_VALUE_BYTES_MAX} bytes without NUL");
            return Err(Error::invalid("labels", problem));
        }
    }
    Ok(())
}
