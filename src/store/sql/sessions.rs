//! Sessions, their labels and preambles.

use super::connection::{Arg, Database, Lane, Row, Sql, Transaction, args};
use super::{notes, rows, seals, turns, window_states};
use crate::codec::manifest::Config;
use crate::limits::FILTER_LABELS_MAX;
use crate::model::{BranchId, Labels, Preamble, Session, SessionId, TenantId, Version};
use crate::store::meta::{
    CommitOutcome, CreateOutcome, NewSession, RecordedTurn, SessionKey, SessionQuery, SessionUpdate, Tip,
};
use crate::store::{ErrorKind, StoreError};

/// Bytes that a session's own branches take in the blob store.
pub(super) async fn blob_bytes(db: &dyn Database, key: &SessionKey) -> Result<u64, StoreError> {
    let sql = Sql::both(
        "SELECT CAST(coalesce(sum(stored_bytes), 0) AS BIGINT) FROM (\
         SELECT tenant, branch_id, stored_bytes FROM segment WHERE tenant = $1 \
         UNION ALL SELECT tenant, branch_id, stored_bytes FROM output \
         WHERE tenant = $1 AND blob_key IS NOT NULL) blob \
         JOIN branch ON branch.tenant = blob.tenant AND branch.branch_id = blob.branch_id \
         WHERE branch.tenant = $1 AND branch.session_id = $2",
    );
    let row = db.query(Lane::Read, sql, args![&key.tenant, &key.session]).await?.pop();
    row.map_or(Ok(0), |mut row| row.next())
}

/// Locks a live session's head until the transaction ends.
pub(super) const LOCK_HEAD: Sql = Sql::each(
    "SELECT version FROM head WHERE tenant = $1 AND session_id = $2 AND deleted = 0 FOR UPDATE",
    "SELECT version FROM head WHERE tenant = $1 AND session_id = $2 AND deleted = 0",
);

pub(super) const INSERT_SESSION: Sql = Sql::both(
    "INSERT INTO session (tenant, session_id, path, config, created_at) VALUES ($1, $2, $3, $4, $5)",
);

const INSERT_LABEL: Sql = Sql::both(
    "INSERT INTO session_label (tenant, label_key, label_value, session_id) VALUES ($1, $2, $3, $4)",
);

const INSERT_PREAMBLE: Sql = Sql::both(
    "INSERT INTO preamble (tenant, session_id, revision, since_version, tokens, payload) \
     VALUES ($1, $2, $3, $4, $5, $6)",
);

/// A session's row as a value.
pub(super) fn session_args<'a>(
    tenant: &'a TenantId,
    session: &'a Session,
) -> Result<Vec<Arg<'a>>, StoreError> {
    let config = serde_json::to_string(&Config::from(session))
        .map_err(|error| StoreError::caused(ErrorKind::Internal, "encode a session", error))?;
    Ok(args![tenant, &session.id, session.path.as_str(), config, session.created_at])
}

/// Creates a session with its first rows.
pub(super) async fn create(db: &dyn Database, new: NewSession) -> Result<CreateOutcome, StoreError> {
    let NewSession { tenant, session, branch, turn, preamble, source, window_state, opening, calibration } =
        &new;
    let (state, offset) = *window_state;
    let mut tx = db.begin(Lane::Write).await?;
    if let Some((source, branch)) = source
        && !is_source(tx.as_mut(), tenant, source, branch).await?
    {
        tx.rollback().await?;
        return Ok(CreateOutcome::SourceGone);
    }
    let insert_head = Sql::both(
        "INSERT INTO head (tenant, session_id, deleted, version, branch_id, receipt, config_revision, window_revision, \
         preamble_revision, preamble_tokens, journal_bytes, fence, updated_at, window_state, window_offset, \
         calibration) VALUES ($1, $2, 0, $3, $4, $5, 1, 1, $6, $7, 0, 0, $8, $9, $10, $11) \
         ON CONFLICT (tenant, session_id) DO NOTHING",
    );
    let (revision, tokens) =
        preamble.as_ref().map_or((0, 0), |preamble| (preamble.revision, preamble.tokens));
    let RecordedTurn { turn: first, .. } = turn;
    let head = args![
        tenant,
        &session.id,
        first.version,
        &branch.id,
        first.receipt,
        revision,
        tokens,
        session.created_at,
        state,
        offset,
        rows::calibration_arg(calibration.as_ref())?
    ];
    if tx.execute(insert_head, head).await? == 0 {
        let taken = Sql::both("SELECT deleted FROM head WHERE tenant = $1 AND session_id = $2");
        let row = tx.query(taken, args![tenant, &session.id]).await?.pop();
        tx.rollback().await?;
        let deleted = row.map(|mut row| row.next()).transpose()?.unwrap_or(false);
        return Ok(CreateOutcome::Taken { deleted });
    }
    tx.execute(INSERT_SESSION, session_args(tenant, session)?).await?;
    insert_labels(tx.as_mut(), tenant, &session.id, &session.labels).await?;
    tx.execute(seals::INSERT_BRANCH, rows::branch_args(tenant, branch)).await?;
    tx.execute(turns::INSERT_TURN, rows::turn_args(tenant, &session.id, turn)?).await?;
    if let Some(preamble) = preamble {
        insert_preamble(tx.as_mut(), tenant, &session.id, preamble).await?;
    }
    if let Some(state) = opening {
        let values = window_states::insert_args(tenant, &session.id, state)?;
        tx.execute(window_states::INSERT, values).await?;
    }
    if let Some((source, _)) = source {
        tx.execute(notes::COPY, args![tenant, source, &session.id]).await?;
    }
    tx.commit().await?;
    Ok(CreateOutcome::Created)
}

/// Whether a fork may begin on a branch of a session, or a session go on from it;
/// keeps both from being deleted until the transaction ends.
async fn is_source(
    tx: &mut dyn Transaction,
    tenant: &TenantId,
    source: &SessionId,
    branch: &BranchId,
) -> Result<bool, StoreError> {
    let live = Sql::each(
        "SELECT version FROM head WHERE tenant = $1 AND session_id = $2 AND deleted = 0 FOR SHARE",
        "SELECT version FROM head WHERE tenant = $1 AND session_id = $2 AND deleted = 0",
    );
    if tx.query(live, args![tenant, source]).await?.is_empty() {
        return Ok(false);
    }
    let there = Sql::each(
        "SELECT branch_id FROM branch WHERE tenant = $1 AND branch_id = $2 FOR SHARE",
        "SELECT branch_id FROM branch WHERE tenant = $1 AND branch_id = $2",
    );
    Ok(!tx.query(there, args![tenant, branch]).await?.is_empty())
}

pub(super) async fn insert_labels(
    tx: &mut dyn Transaction,
    tenant: &TenantId,
    session: &SessionId,
    labels: &Labels,
) -> Result<(), StoreError> {
    for (key, value) in labels {
        tx.execute(INSERT_LABEL, args![tenant, key.as_str(), value.as_str(), session]).await?;
    }
    Ok(())
}

pub(super) async fn insert_preamble(
    tx: &mut dyn Transaction,
    tenant: &TenantId,
    session: &SessionId,
    preamble: &Preamble,
) -> Result<(), StoreError> {
    let Preamble { revision, payload, tokens, since_version } = preamble;
    tx.execute(INSERT_PREAMBLE, args![tenant, session, *revision, *since_version, *tokens, payload]).await?;
    Ok(())
}

/// Columns of a tip but for the journal.
macro_rules! tip_columns {
    () => {
        concat!(
            "session.session_id, session.config, session.created_at, ",
            rows::head_columns!(),
            ", ",
            rows::branch_columns!("branch"),
            ", ",
            rows::turn_columns!("turn")
        )
    };
}

/// Joins rows that have a key, or a beginning of one, that the tables before them give.
///
/// For Postgres it is a query of its own (which `OFFSET 0` keeps it), so that all of
/// the key is looked up: a statement is planned once for a connection, perhaps while
/// the tables are empty, where a part of the key costs as much as the whole, and each
/// restore would read all turns of its branch until the table is analyzed.
macro_rules! joined {
    (postgres, $join:literal, $table:literal, $key:literal) => {
        concat!(
            $join,
            " LATERAL (SELECT * FROM ",
            $table,
            " WHERE ",
            $key,
            " OFFSET 0) ",
            $table,
            " ON TRUE "
        )
    };
    (sqlite, $join:literal, $table:literal, $key:literal) => {
        concat!($join, " ", $table, " ON ", $key, " ")
    };
}

/// The tables of a tip but for the journal.
macro_rules! tip_tables {
    ($dialect:ident) => {
        concat!(
            " FROM head \
             JOIN session ON session.tenant = head.tenant AND session.session_id = head.session_id ",
            joined!(
                $dialect,
                "JOIN",
                "branch",
                "branch.tenant = head.tenant AND branch.branch_id = head.branch_id"
            ),
            joined!(
                $dialect,
                "JOIN",
                "turn",
                "turn.tenant = head.tenant AND turn.branch_id = head.branch_id AND turn.version = head.version"
            ),
        )
    };
}

/// A query of tips: more columns, a table more, and what comes after the tables.
macro_rules! tip_query {
    ($columns:expr, $(joined: ($($joined:tt)+),)? $rest:literal) => {
        Sql::each(
            tip_query!(@ postgres, $columns, [$(joined!(postgres, $($joined)+))?], $rest),
            tip_query!(@ sqlite, $columns, [$(joined!(sqlite, $($joined)+))?], $rest),
        )
    };
    (@ $dialect:ident, $columns:expr, [$($joined:expr)?], $rest:literal) => {
        concat!("SELECT ", tip_columns!(), $columns, tip_tables!($dialect), $($joined,)? $rest)
    };
}

fn read_tip(row: &mut Row) -> Result<Tip, StoreError> {
    Ok(Tip {
        session: rows::session(row)?,
        head: rows::head(row)?,
        branch: rows::branch(row)?,
        turn: rows::recorded_turn(row)?.turn,
        journal: vec![],
    })
}

/// A live session as it stands.
pub(super) async fn tip(
    db: &dyn Database,
    key: &SessionKey,
    journal_after: Option<Version>,
) -> Result<Option<Tip>, StoreError> {
    let mut rows = match journal_after {
        None => {
            let sql =
                tip_query!("", "WHERE head.tenant = $1 AND head.session_id = $2 AND head.deleted = 0");
            db.query(Lane::Read, sql, args![&key.tenant, &key.session]).await?
        }
        Some(after) => {
            let sql = tip_query!(
                concat!(", ", rows::journal_columns!("journal")),
                joined: (
                    "LEFT JOIN",
                    "journal",
                    "journal.tenant = head.tenant AND journal.branch_id = head.branch_id AND journal.version > $3"
                ),
                "WHERE head.tenant = $1 AND head.session_id = $2 AND head.deleted = 0 ORDER BY journal.version"
            );
            db.query(Lane::Read, sql, args![&key.tenant, &key.session, after]).await?
        }
    }
    .into_iter();
    let Some(mut first) = rows.next() else { return Ok(None) };
    let mut tip = read_tip(&mut first)?;
    if journal_after.is_some() {
        for mut row in std::iter::once(first).chain(rows.map(skip_tip)) {
            // Null in all columns if the journal has no such row.
            if let Some(version) = row.next::<Option<u64>>()? {
                tip.journal.push(rows::journal_row_after(Version(version), &mut row)?);
            }
        }
    }
    Ok(Some(tip))
}

/// Skips the columns of a tip.
fn skip_tip(row: Row) -> Row {
    const TIP_COLUMNS: usize = 3 + 13 + 9 + 18;
    row.skip(TIP_COLUMNS)
}

/// Lists live sessions.
pub(super) async fn list(
    db: &dyn Database,
    tenant: &TenantId,
    query: &SessionQuery,
) -> Result<Vec<Tip>, StoreError> {
    let sql = tip_query!(
        "",
        "WHERE head.tenant = $1 AND head.deleted = 0 \
         AND ($2 IS NULL OR session.path = $2) \
         AND session.created_at >= $3 AND session.created_at < $4 AND head.updated_at >= $5 \
         AND (session.created_at < $6 OR (session.created_at = $6 AND session.session_id < $7)) \
         AND ($8 IS NULL OR EXISTS (SELECT 1 FROM session_label l WHERE l.tenant = head.tenant \
              AND l.session_id = head.session_id AND l.label_key = $8 AND l.label_value = $9)) \
         AND ($10 IS NULL OR EXISTS (SELECT 1 FROM session_label l WHERE l.tenant = head.tenant \
              AND l.session_id = head.session_id AND l.label_key = $10 AND l.label_value = $11)) \
         AND ($12 IS NULL OR EXISTS (SELECT 1 FROM session_label l WHERE l.tenant = head.tenant \
              AND l.session_id = head.session_id AND l.label_key = $12 AND l.label_value = $13)) \
         AND ($14 IS NULL OR EXISTS (SELECT 1 FROM session_label l WHERE l.tenant = head.tenant \
              AND l.session_id = head.session_id AND l.label_key = $14 AND l.label_value = $15)) \
         ORDER BY session.created_at DESC, session.session_id DESC LIMIT $16"
    );
    let (after_time, after_id) = match &query.after {
        Some((time, id)) => (time.0, id.as_str()),
        None => (i64::MAX, ""),
    };
    let mut values = args![
        tenant,
        query.path.map(crate::model::CompressionPath::as_str),
        query.created_min.map_or(i64::MIN, |at| at.0),
        query.created_max.map_or(i64::MAX, |at| at.0),
        query.updated_min.map_or(i64::MIN, |at| at.0),
        after_time,
        after_id,
    ];
    let mut labels = query.labels.iter();
    for _ in 0..FILTER_LABELS_MAX {
        let label = labels.next();
        values.push(label.map(|(key, _)| key.as_str()).into());
        values.push(label.map(|(_, value)| value.as_str()).into());
    }
    values.push(query.limit.into());
    let found = db.query(Lane::Read, sql, values).await?;
    found.into_iter().map(|mut row| read_tip(&mut row)).collect()
}

/// Changes a session's configuration.
pub(super) async fn update(db: &dyn Database, update: SessionUpdate) -> Result<CommitOutcome, StoreError> {
    let SessionUpdate { key, expected_revision, session, preamble, revise_window, at } = &update;
    let mut tx = db.begin(Lane::Write).await?;
    let revise = Sql::both(
        "UPDATE head SET config_revision = config_revision + 1, window_revision = window_revision + $4, \
         updated_at = $5 WHERE tenant = $1 AND session_id = $2 AND config_revision = $3 AND deleted = 0",
    );
    let values = args![&key.tenant, &key.session, *expected_revision, *revise_window, *at];
    if tx.execute(revise, values).await? != 1 {
        tx.rollback().await?;
        return Ok(CommitOutcome::NotAsExpected);
    }
    let replace = Sql::both(
        "UPDATE session SET path = $3, config = $4, created_at = $5 WHERE tenant = $1 AND session_id = $2",
    );
    tx.execute(replace, session_args(&key.tenant, session)?).await?;
    let drop_labels = Sql::both("DELETE FROM session_label WHERE tenant = $1 AND session_id = $2");
    tx.execute(drop_labels, args![&key.tenant, &key.session]).await?;
    insert_labels(tx.as_mut(), &key.tenant, &key.session, &session.labels).await?;
    if let Some(preamble) = preamble {
        insert_preamble(tx.as_mut(), &key.tenant, &key.session, preamble).await?;
        let point = Sql::both(
            "UPDATE head SET preamble_revision = $3, preamble_tokens = $4 WHERE tenant = $1 AND session_id = $2",
        );
        tx.execute(point, args![&key.tenant, &key.session, preamble.revision, preamble.tokens]).await?;
    }
    tx.commit().await?;
    Ok(CommitOutcome::Committed)
}

/// The preamble that was current at a version.
pub(super) async fn preamble(
    db: &dyn Database,
    key: &SessionKey,
    at: Version,
) -> Result<Option<Preamble>, StoreError> {
    let sql = Sql::both(
        "SELECT revision, since_version, tokens, payload FROM preamble \
         WHERE tenant = $1 AND session_id = $2 AND since_version <= $3 ORDER BY revision DESC LIMIT 1",
    );
    let found = db.query(Lane::Read, sql, args![&key.tenant, &key.session, at]).await?;
    found.into_iter().next().map(|mut row| rows::preamble(&mut row)).transpose()
}

/// All preambles of a session.
pub(super) async fn preambles(db: &dyn Database, key: &SessionKey) -> Result<Vec<Preamble>, StoreError> {
    let sql = Sql::both(
        "SELECT revision, since_version, tokens, payload FROM preamble \
         WHERE tenant = $1 AND session_id = $2 ORDER BY revision",
    );
    let found = db.query(Lane::Background, sql, args![&key.tenant, &key.session]).await?;
    found.into_iter().map(|mut row| rows::preamble(&mut row)).collect()
}
