//! Migrations: the same in both dialects, and applied to databases that hold
//! data.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/stores.rs"]
mod stores;

use futures::future::join_all;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use stores::{Database, Line, on_both_databases};
use turnkeep::store::MetaStore;
use turnkeep::store::meta::CommitOutcome;
use turnkeep::store::sql::MIGRATIONS;

on_both_databases![
    a_database_is_upgraded_from_every_earlier_number_with_its_data,
    an_older_service_runs_on_a_newer_schema,
    a_migration_that_was_edited_after_it_was_applied_is_refused,
    a_migration_that_fails_can_be_applied_once_its_cause_is_gone,
    the_tests_know_all_tables,
    a_journal_row_is_read_without_its_body,
];

#[test]
fn both_dialects_have_the_same_numbers_and_names() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
    let files = |dialect: &str| -> BTreeSet<String> {
        let files = fs::read_dir(directory.join(dialect)).unwrap();
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
    };
    let compiled: BTreeSet<_> =
        MIGRATIONS.iter().map(|migration| format!("{}.sql", migration.name)).collect();
    assert_eq!(files("postgres"), compiled);
    assert_eq!(files("sqlite"), compiled);
    for (migration, number) in MIGRATIONS.iter().zip(1..) {
        assert_eq!(migration.number, number, "{}", migration.name);
        assert!(migration.name.starts_with(&format!("{number:04}_")), "{}", migration.name);
    }
}

/// Columns of each table: name, type, whether it may be null, place in the
/// primary key.
type Columns = BTreeMap<String, Vec<[String; 4]>>;

async fn columns(database: &Database) -> Columns {
    let rows = if database.url().is_some() {
        database
            .rows(
                "SELECT c.table_name::text, c.column_name::text, \
                 CASE c.data_type WHEN 'bigint' THEN 'INTEGER' WHEN 'bytea' THEN 'BLOB' ELSE upper(c.data_type) END, \
                 CASE c.is_nullable WHEN 'YES' THEN '1' ELSE '0' END, \
                 coalesce((SELECT k.ordinal_position::text FROM information_schema.table_constraints t \
                 JOIN information_schema.key_column_usage k USING (constraint_schema, constraint_name) \
                 WHERE t.constraint_type = 'PRIMARY KEY' AND t.table_schema = c.table_schema \
                 AND t.table_name = c.table_name AND k.column_name = c.column_name), '0') \
                 FROM information_schema.columns c WHERE c.table_schema = current_schema() \
                 ORDER BY c.table_name, c.ordinal_position",
            )
            .await
    } else {
        database
            .rows(
                // A key without rowid is not null, whatever the column says.
                "SELECT t.name, c.name, upper(c.type), CASE WHEN c.\"notnull\" OR c.pk > 0 THEN '0' ELSE '1' END, \
                 CAST(c.pk AS TEXT) FROM sqlite_master t JOIN pragma_table_info(t.name) c \
                 WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite_%' ORDER BY t.name, c.cid",
            )
            .await
    };
    let mut tables = Columns::new();
    for row in rows {
        let [table, column, kind, null, key] = row.try_into().unwrap();
        tables.entry(table).or_default().push([column, kind, null, key]);
    }
    // The migrator's own table is made by the migrator.
    tables.remove("_sqlx_migrations");
    tables
}

/// Indexes: whether they are unique, and their columns in order.
async fn indexes(database: &Database) -> BTreeMap<String, (String, Vec<String>)> {
    let rows = if database.url().is_some() {
        database
            .rows(
                "SELECT i.relname::text, CASE WHEN x.indisunique THEN '1' ELSE '0' END, a.attname::text \
                 FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid \
                 CROSS JOIN LATERAL unnest(x.indkey) WITH ORDINALITY AS k(column_number, place) \
                 JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = k.column_number \
                 WHERE i.relnamespace = current_schema()::regnamespace AND NOT x.indisprimary \
                 ORDER BY i.relname, k.place",
            )
            .await
    } else {
        database
            .rows(
                "SELECT l.name, CAST(l.\"unique\" AS TEXT), c.name FROM sqlite_master t \
                 JOIN pragma_index_list(t.name) l JOIN pragma_index_info(l.name) c \
                 WHERE t.type = 'table' AND l.origin = 'c' ORDER BY l.name, c.seqno",
            )
            .await
    };
    let mut indexes = BTreeMap::new();
    for row in rows {
        let [index, unique, column] = row.try_into().unwrap();
        indexes.entry(index).or_insert_with(|| (unique, vec![])).1.push(column);
    }
    indexes
}

#[tokio::test]
async fn both_dialects_have_the_same_tables_columns_keys_and_indexes_after_each_migration() {
    for migration in MIGRATIONS {
        let Some(postgres) = Database::empty_postgres().await else { return };
        let sqlite = Database::empty_sqlite().await;
        postgres.meta.migrate_to(migration.number).await.unwrap();
        sqlite.meta.migrate_to(migration.number).await.unwrap();
        let (ours, theirs) = (columns(&postgres).await, columns(&sqlite).await);
        assert!(ours.len() >= 10, "{ours:?}");
        assert_eq!(ours, theirs, "after {}", migration.name);
        let (ours, theirs) = (indexes(&postgres).await, indexes(&sqlite).await);
        assert!(ours.len() >= 5, "{ours:?}");
        assert_eq!(ours, theirs, "after {}", migration.name);
    }
}

async fn empty(like: &Database) -> Database {
    match like.url() {
        None => Database::empty_sqlite().await,
        Some(_) => Database::empty_postgres().await.unwrap(),
    }
}

/// Puts a row into each table, with a value in each column.
async fn fill(database: &Database) {
    for (table, columns) in columns(database).await {
        let names: Vec<_> = columns.iter().map(|[name, ..]| name.as_str()).collect();
        let values: Vec<_> = columns
            .iter()
            .map(|[_, kind, ..]| match kind.as_str() {
                "INTEGER" => "7",
                "BLOB" if database.url().is_some() => r"'\x78'",
                "BLOB" => "x'78'",
                _ => "'x'",
            })
            .collect();
        let (names, values) = (names.join(", "), values.join(", "));
        database.execute_made(format!("INSERT INTO {table} ({names}) VALUES ({values})")).await;
    }
}

/// Each table's rows, with the names of the columns that it had before.
async fn rows(database: &Database, before: &Columns) -> BTreeMap<String, Vec<BTreeMap<String, String>>> {
    let now = columns(database).await;
    let mut tables = BTreeMap::new();
    for (table, known) in before {
        let names = || now[table].iter().map(|[name, ..]| name.clone());
        let is_known = |name: &String| known.iter().any(|[known, ..]| known == name);
        let rows = database.rows_of(table).await.into_iter();
        let named = rows.map(|row| names().zip(row).filter(|(name, _)| is_known(name)).collect());
        tables.insert(table.clone(), named.collect());
    }
    tables
}

/// A session can be written and read.
async fn assert_serves(database: &Database) {
    database.meta.ping().await.unwrap();
    let mut line = Line::create(database.meta.as_ref(), "after").await;
    line.append(database.meta.as_ref(), "r1").await;
    let generation = stores::generation(database.meta.as_ref()).await;
    let sealed = database.meta.commit_seal(line.sealed(1, "blob", generation)).await.unwrap();
    assert_eq!(sealed, CommitOutcome::Committed);
    let tip = database.meta.tip(&line.key, None).await.unwrap().unwrap();
    assert_eq!((tip.turn, tip.branch), (line.tip.turn.clone(), line.branch.clone()));
    database
        .meta
        .delete_session(&line.key, true, line.branch.created_at, line.branch.created_at)
        .await
        .unwrap();
}

async fn a_database_is_upgraded_from_every_earlier_number_with_its_data(database: Database) {
    for start in 0..=MIGRATIONS.len() {
        let old = empty(&database).await;
        let (applied, missing) = MIGRATIONS.split_at(start);
        if let Some(last) = applied.last() {
            old.meta.migrate_to(last.number).await.unwrap();
            fill(&old).await;
        }
        let before = columns(&old).await;
        let held = rows(&old, &before).await;
        assert!(held.values().all(|rows| rows.len() == 1), "{held:?}");
        let numbers: Vec<_> = missing.iter().map(|migration| migration.number).collect();
        assert_eq!(old.meta.migrate().await.unwrap(), numbers);
        assert_eq!(rows(&old, &before).await, held, "from {start}");
        assert_serves(&old).await;
        // The schema is the one of a new database.
        assert_eq!(columns(&old).await, columns(&database).await);
        assert_eq!(indexes(&old).await, indexes(&database).await);
        assert_eq!(old.meta.migrate().await.unwrap(), [0; 0]);
    }
}

async fn an_older_service_runs_on_a_newer_schema(database: Database) {
    // What the next release may do: add tables, and columns with a default.
    database.execute("CREATE TABLE later (tenant TEXT NOT NULL PRIMARY KEY)").await;
    database.execute("ALTER TABLE head ADD COLUMN later BIGINT NOT NULL DEFAULT 0").await;
    database.execute("ALTER TABLE turn ADD COLUMN later TEXT").await;
    let newest = "INSERT INTO _sqlx_migrations (version, description, installed_on, success, checksum, execution_time) \
        SELECT 9999, 'later', installed_on, success, checksum, 1 FROM _sqlx_migrations WHERE version = 1";
    assert_eq!(database.execute(newest).await, 1);
    assert_eq!(database.meta.migrate().await.unwrap(), [0; 0]);
    assert_serves(&database).await;
}

async fn a_migration_that_was_edited_after_it_was_applied_is_refused(database: Database) {
    let before = database.dump().await;
    let (postgres, sqlite) =
        (r"UPDATE _sqlx_migrations SET checksum = '\x00'", "UPDATE _sqlx_migrations SET checksum = x'00'");
    database.execute(if database.url().is_some() { postgres } else { sqlite }).await;
    database.meta.migrate().await.unwrap_err();
    assert_eq!(database.dump().await, before);
}

async fn a_migration_that_fails_can_be_applied_once_its_cause_is_gone(database: Database) {
    let old = empty(&database).await;
    old.execute("CREATE TABLE writer_generation (x TEXT)").await;
    old.meta.migrate().await.unwrap_err();
    assert!(old.meta.ping().await.is_err());
    // Neither a lock nor half of the tables is left.
    let left: Vec<_> = columns(&old).await.into_keys().collect();
    assert_eq!(left, ["writer_generation"]);
    old.execute("DROP TABLE writer_generation").await;
    assert_eq!(old.another().await.migrate().await.unwrap().len(), MIGRATIONS.len());
    assert_serves(&old).await;
}

/// `SQLite` reads a row up to the last column that is asked for, and the scan
/// for journals that are due asks for all but the body.
async fn a_journal_row_is_read_without_its_body(database: Database) {
    let journal = &columns(&database).await["journal"];
    assert_eq!(journal.last().unwrap()[0], "body");
}

async fn the_tests_know_all_tables(database: Database) {
    let known = stores::TABLES.map(str::to_owned);
    assert_eq!(columns(&database).await.into_keys().collect::<Vec<_>>(), known);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_processes_that_migrate_at_the_same_time_one_applies_each_migration() {
    let Some(database) = Database::empty_postgres().await else { return };
    let mut processes = Vec::new();
    for _ in 0..4 {
        processes.push(database.another().await);
    }
    let outcomes = join_all(processes.iter().map(MetaStore::migrate)).await;
    let mut applied: Vec<_> = outcomes.into_iter().map(Result::unwrap).collect();
    // A process that began before another ended may name what that one applied.
    applied.retain(|numbers| !numbers.is_empty());
    let all: Vec<_> = MIGRATIONS.iter().map(|migration| migration.number).collect();
    assert!(!applied.is_empty() && applied.iter().all(|numbers| *numbers == all), "{applied:?}");
    assert_serves(&database).await;
}

/// In a database of its own, since the migrator's lock is one for all schemas.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_waits_longer_for_others_than_for_one_lock() {
    use sqlx::{Connection as _, Executor as _};
    let Some(shared) = Database::empty_postgres().await else { return };
    let name = format!("turnkeep_waits_{}", std::process::id());
    shared.execute_made(format!("CREATE DATABASE {name}")).await;
    let server = std::env::var("TURNKEEP_TEST_POSTGRES").unwrap();
    let (server, _) = server.rsplit_once('/').unwrap();
    let database = Database::new_schema(&format!("{server}/{name}")).await;
    let mut other = sqlx::PgConnection::connect(database.url().unwrap()).await.unwrap();
    other.execute("BEGIN").await.unwrap();
    other.execute("CREATE TABLE _sqlx_migrations (held BIGINT)").await.unwrap();
    let meta = database.another().await;
    let migrating = tokio::spawn(async move { meta.migrate().await });
    let mut waited: BTreeSet<String> = BTreeSet::new();
    while waited.len() < 2 {
        assert!(!migrating.is_finished(), "{:?}", migrating.await);
        let waiting = "SELECT pid::text FROM pg_locks WHERE NOT granted AND locktype = 'transactionid' \
                       AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())";
        waited.extend(database.rows(waiting).await.into_iter().flatten());
        turnkeep::clock::sleep(std::time::Duration::from_millis(50)).await;
    }
    other.execute("ROLLBACK").await.unwrap();
    assert_eq!(migrating.await.unwrap().unwrap().len(), MIGRATIONS.len());
    assert_serves(&database).await;
}
