//! The schema's migrations, compiled in.

use super::connection::{Database, Lane, Sql};
use crate::store::{ErrorKind, StoreError};
use sqlx::SqlSafeStr as _;
use sqlx::migrate::{Migration, MigrationType, Migrator};

/// A migration in both dialects.
#[derive(Clone, Copy, Debug)]
pub struct PairedMigration {
    /// Its number.
    pub number: i64,
    /// Its name.
    pub name: &'static str,
    /// Its text for Postgres.
    pub postgres: &'static str,
    /// Its text for `SQLite`.
    pub sqlite: &'static str,
}

macro_rules! migration {
    ($number:literal, $file:literal) => {
        PairedMigration {
            number: $number,
            name: $file,
            postgres: include_str!(concat!("../../../migrations/postgres/", $file, ".sql")),
            sqlite: include_str!(concat!("../../../migrations/sqlite/", $file, ".sql")),
        }
    };
}

/// All migrations, in order.
pub const MIGRATIONS: &[PairedMigration] = &[
    migration!(1, "0001_create_sessions"),
    migration!(2, "0002_create_outputs"),
    migration!(3, "0003_create_window_states"),
    migration!(4, "0004_create_notes"),
];

/// Number of the newest migration.
pub(super) fn newest() -> i64 {
    MIGRATIONS.last().map_or(0, |migration| migration.number)
}

/// Applies migrations up to a number, or all, and returns those that were
/// applied.
pub(super) async fn migrate(db: &dyn Database, to: Option<i64>) -> Result<Vec<i64>, StoreError> {
    let before = applied(db).await?;
    let migrations = MIGRATIONS
        .iter()
        .map(|migration| {
            let sql = db.text(Sql::each(migration.postgres, migration.sqlite));
            Migration::new(
                migration.number,
                migration.name.into(),
                MigrationType::Simple,
                sql.into_sql_str(),
                false,
            )
        })
        .collect();
    let mut migrator = Migrator::with_migrations(migrations);
    // A release also runs on the schema of the one after it.
    migrator.set_ignore_missing(true);
    db.migrate(&migrator, to).await?;
    let after = applied(db).await?;
    Ok(after.into_iter().filter(|number| !before.contains(number)).collect())
}

async fn applied(db: &dyn Database) -> Result<Vec<i64>, StoreError> {
    let sql = Sql::both("SELECT version FROM _sqlx_migrations WHERE success ORDER BY version");
    match db.query(Lane::Background, sql, vec![]).await {
        Ok(rows) => rows.into_iter().map(|mut row| row.next()).collect(),
        // The table is not there before the first migration.
        Err(error) if error.kind == ErrorKind::Internal => Ok(vec![]),
        Err(error) => Err(error),
    }
}
