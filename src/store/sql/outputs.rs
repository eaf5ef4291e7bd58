//! Tool outputs.

use super::connection::{Database, Lane, Sql, args};
use super::{deletions, held_outputs, rows};
use crate::model::{Output, OutputId, Version};
use crate::store::StoreError;
use crate::store::meta::{BranchKey, NewOutput, SessionKey};

/// Keeps the head from being deleted until the transaction ends; turns do not wait
/// for it.
const HOLD_HEAD: Sql = Sql::each(
    "SELECT branch_id, version FROM head WHERE tenant = $1 AND session_id = $2 AND deleted = 0 FOR KEY SHARE",
    "SELECT branch_id, version FROM head WHERE tenant = $1 AND session_id = $2 AND deleted = 0",
);

/// The same for an output that is held, which takes room of the session's journal.
const CHARGE_HEAD: Sql = Sql::both(
    "UPDATE head SET journal_bytes = journal_bytes + $3 \
     WHERE tenant = $1 AND session_id = $2 AND deleted = 0 AND journal_bytes + $3 <= $4 \
     RETURNING branch_id, version",
);

pub(super) const INSERT: Sql = Sql::both(
    "INSERT INTO output (tenant, output_id, branch_id, version, tool_call_id, tool_name, content_type, bytes, \
     characters, lines, sha256, blob_key, stored_bytes, tail_at, format, created_at, stored_entry_digest, \
     received_entry_digest) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)",
);

/// A session's branches and those that they continue, each with the version
/// before which outputs of it count.
macro_rules! of_session {
    ($rest:literal) => {
        concat!(
            "WITH RECURSIVE line AS (\
             SELECT branch_id, parent_branch_id, base_version, 9223372036854775807 AS until FROM branch \
             WHERE tenant = $1 AND session_id = $2 \
             UNION \
             SELECT parent.branch_id, parent.parent_branch_id, parent.base_version, line.base_version \
             FROM branch parent JOIN line ON parent.branch_id = line.parent_branch_id WHERE parent.tenant = $1) \
             SELECT ",
            rows::output_columns!(),
            " FROM (SELECT branch_id, max(until) AS until FROM line GROUP BY branch_id) known \
             JOIN output ON output.branch_id = known.branch_id AND output.version < known.until \
             WHERE output.tenant = $1 ",
            $rest
        )
    };
}

/// Keeps an output on the branch that its session is on.
pub(super) async fn add(db: &dyn Database, new: NewOutput) -> Result<Option<Output>, StoreError> {
    let NewOutput { key, mut output, held, journal_bytes_max, generation } = new;
    let mut tx = db.begin(Lane::Write).await?;
    let head = if let Some(body) = &held {
        let values = args![&key.tenant, &key.session, body.len() as u64, journal_bytes_max];
        tx.query(CHARGE_HEAD, values).await?.pop()
    } else {
        tx.hold_generation(generation).await?;
        tx.query(HOLD_HEAD, args![&key.tenant, &key.session]).await?.pop()
    };
    let Some(mut head) = head else {
        tx.rollback().await?;
        return Ok(None);
    };
    output.branch = rows::branch_id(&mut head)?;
    output.version = Version(head.next()?);
    tx.execute(INSERT, rows::output_args(&key.tenant, &output)).await?;
    if let Some(body) = &held {
        held_outputs::insert(tx.as_mut(), &key.tenant, &output, body).await?;
    }
    tx.commit().await?;
    Ok(Some(output))
}

/// An output that a session has.
pub(super) async fn get(
    db: &dyn Database,
    key: &SessionKey,
    id: &OutputId,
) -> Result<Option<Output>, StoreError> {
    let sql = Sql::both(of_session!("AND output.output_id = $3"));
    let found = db.query(Lane::Read, sql, args![&key.tenant, &key.session, id]).await?.pop();
    let Some(output) = found.map(|mut row| rows::output(&mut row)).transpose()? else { return Ok(None) };
    let live = Sql::both("SELECT version FROM head WHERE tenant = $1 AND session_id = $2 AND deleted = 0");
    if !db.query(Lane::Read, live, args![&key.tenant, &key.session]).await?.is_empty() {
        return Ok(Some(output));
    }
    // The branches of a deleted session go a while after the last fork.
    let forks = args![&key.tenant, &output.branch, 1i64];
    let forks = db.query(Lane::Read, deletions::FORKS_OF_BRANCH, forks).await?;
    Ok((!forks.is_empty()).then_some(output))
}

/// The outputs that a session has.
pub(super) async fn list(
    db: &dyn Database,
    key: &SessionKey,
    before: Option<&OutputId>,
    limit: u32,
) -> Result<Vec<Output>, StoreError> {
    let sql = Sql::both(of_session!("AND output.output_id < $3 ORDER BY output.output_id DESC LIMIT $4"));
    // After all ids, which are hex digits.
    let before = before.map_or("g", OutputId::as_str);
    let found = db.query(Lane::Read, sql, args![&key.tenant, &key.session, before, limit]).await?;
    found.into_iter().map(|mut row| rows::output(&mut row)).collect()
}

/// The outputs of a branch.
pub(super) async fn of_branch(
    db: &dyn Database,
    key: &BranchKey,
    after: Option<&OutputId>,
    limit: u32,
) -> Result<Vec<Output>, StoreError> {
    let sql = Sql::both(concat!(
        "SELECT ",
        rows::output_columns!(),
        " FROM output WHERE tenant = $1 AND branch_id = $2 AND output_id > $3 ORDER BY output_id LIMIT $4"
    ));
    let after = after.map_or("", OutputId::as_str);
    let found = db.query(Lane::Background, sql, args![&key.tenant, &key.branch, after, limit]).await?;
    found.into_iter().map(|mut row| rows::output(&mut row)).collect()
}
