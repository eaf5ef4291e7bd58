//! What the two databases have in common, and the hooks where they differ.

use crate::store::{ErrorKind, StoreError};
use async_trait::async_trait;
use std::borrow::Cow;

/// A statement in the texts of both dialects.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sql {
    pub(super) postgres: &'static str,
    pub(super) sqlite: &'static str,
}

impl Sql {
    /// One text for both.
    pub(super) const fn both(text: &'static str) -> Self {
        Self { postgres: text, sqlite: text }
    }

    /// A text for each.
    pub(super) const fn each(postgres: &'static str, sqlite: &'static str) -> Self {
        Self { postgres, sqlite }
    }
}

/// Which pool a statement uses, so that one kind of work cannot starve another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Persists and other changes of sessions.
    Write,
    /// Restores, reads and lists.
    Read,
    /// Sealing, sweeping, checking.
    Background,
}

/// Connections of each lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PoolSizes {
    /// For persists.
    pub write: u32,
    /// For restores, reads and lists.
    pub read: u32,
    /// For sealing, sweeping and checking.
    pub background: u32,
}

impl Default for PoolSizes {
    fn default() -> Self {
        Self { write: 16, read: 16, background: 4 }
    }
}

/// A value that a statement is given.
#[derive(Clone, Debug)]
pub(super) enum Arg<'a> {
    Int(i64),
    OptInt(Option<i64>),
    Float(Option<f64>),
    Text(Cow<'a, str>),
    OptText(Option<Cow<'a, str>>),
    OptBytes(Option<Vec<u8>>),
    Bytes(Cow<'a, [u8]>),
}

/// A value that a statement gives.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Null,
    Int(i64),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
}

/// A row that a statement gives, read from left to right.
#[derive(Debug)]
pub(super) struct Row {
    values: std::vec::IntoIter<Value>,
}

impl Row {
    pub(super) fn new(values: Vec<Value>) -> Self {
        Self { values: values.into_iter() }
    }

    /// The row without its first `n` values.
    pub(super) fn skip(mut self, n: usize) -> Self {
        self.values.by_ref().take(n).for_each(drop);
        self
    }

    /// The next value.
    pub(super) fn next<T: Column>(&mut self) -> Result<T, StoreError> {
        let value = self.values.next().unwrap_or(Value::Null);
        T::from_value(value).map_err(|value| {
            StoreError::new(ErrorKind::Corrupt, format!("unexpected value in a row: {value:?}"))
        })
    }
}

/// A type that a column is read as.
pub(super) trait Column: Sized {
    fn from_value(value: Value) -> Result<Self, Value>;
}

impl Column for i64 {
    fn from_value(value: Value) -> Result<Self, Value> {
        if let Value::Int(int) = value { Ok(int) } else { Err(value) }
    }
}

impl Column for u64 {
    fn from_value(value: Value) -> Result<Self, Value> {
        i64::from_value(value).and_then(|int| Self::try_from(int).map_err(|_| Value::Int(int)))
    }
}

impl Column for bool {
    fn from_value(value: Value) -> Result<Self, Value> {
        i64::from_value(value).map(|int| int != 0)
    }
}

impl Column for f64 {
    fn from_value(value: Value) -> Result<Self, Value> {
        if let Value::Float(float) = value { Ok(float) } else { Err(value) }
    }
}

impl Column for String {
    fn from_value(value: Value) -> Result<Self, Value> {
        if let Value::Text(text) = value { Ok(text) } else { Err(value) }
    }
}

impl Column for Vec<u8> {
    fn from_value(value: Value) -> Result<Self, Value> {
        if let Value::Bytes(bytes) = value { Ok(bytes) } else { Err(value) }
    }
}

impl<T: Column> Column for Option<T> {
    fn from_value(value: Value) -> Result<Self, Value> {
        if value == Value::Null { Ok(None) } else { T::from_value(value).map(Some) }
    }
}

macro_rules! arg_from {
    ($($from:ty => |$value:ident| $arg:expr;)*) => {
        $(impl<'a> From<$from> for Arg<'a> {
            fn from($value: $from) -> Self {
                $arg
            }
        })*
    };
}

arg_from! {
    i64 => |value| Arg::Int(value);
    u32 => |value| Arg::Int(value.into());
    // Numbers of ours stay far below 2^63; one that does not must not wrap.
    u64 => |value| Arg::Int(i64::try_from(value).unwrap_or(i64::MAX));
    bool => |value| Arg::Int(value.into());
    Option<i64> => |value| Arg::OptInt(value);
    Option<f64> => |value| Arg::Float(value);
    &'a str => |value| Arg::Text(Cow::Borrowed(value));
    String => |value| Arg::Text(Cow::Owned(value));
    Option<&'a str> => |value| Arg::OptText(value.map(Cow::Borrowed));
    Option<String> => |value| Arg::OptText(value.map(Cow::Owned));
    &'a [u8] => |value| Arg::Bytes(Cow::Borrowed(value));
    &'a bytes::Bytes => |value| Arg::Bytes(Cow::Borrowed(value));
    Option<crate::model::Digest> => |value| Arg::OptBytes(value.map(|digest| digest.0.to_vec()));
    crate::model::Digest => |value| Arg::Bytes(Cow::Owned(value.0.to_vec()));
    crate::model::Seq => |value| value.0.into();
    crate::model::Version => |value| value.0.into();
    crate::model::GenerationId => |value| Arg::Int(value.0);
    crate::clock::Micros => |value| Arg::Int(value.0);
    Option<crate::clock::Micros> => |value| Arg::OptInt(value.map(|at| at.0));
    &'a crate::model::TenantId => |value| value.as_str().into();
    &'a crate::model::SessionId => |value| value.as_str().into();
    &'a crate::model::BranchId => |value| value.as_str().into();
    &'a crate::model::RequestId => |value| value.as_str().into();
    &'a crate::model::OutputId => |value| value.as_str().into();
}

/// The values of a statement.
macro_rules! args {
    ($($arg:expr),* $(,)?) => { vec![$($crate::store::sql::connection::Arg::from($arg)),*] };
}
pub(super) use args;

/// A database of one of the dialects.
#[async_trait]
pub(super) trait Database: std::fmt::Debug + Send + Sync {
    /// Reads with one statement outside a transaction.
    async fn query(&self, lane: Lane, sql: Sql, args: Vec<Arg<'_>>) -> Result<Vec<Row>, StoreError>;

    /// Begins a transaction that writes.
    async fn begin(&self, lane: Lane) -> Result<Box<dyn Transaction>, StoreError>;

    /// Runs a text that is a whole transaction, in one round trip, and tells whether it
    /// changed anything: on `SQLite` it gives a row if it did. After an error of kind
    /// `Unknown` it may have taken effect, or may still do so.
    async fn transact(&self, sql: Sql, args: Vec<Arg<'_>>) -> Result<bool, StoreError>;

    /// Takes what was deleted out of the database's files, as far as the service
    /// can; whether it could.
    async fn purge(&self) -> Result<bool, StoreError>;

    /// A statement in this database's dialect.
    fn text(&self, sql: Sql) -> &'static str;

    /// Applies migrations up to a number, or all.
    async fn migrate(&self, migrator: &sqlx::migrate::Migrator, to: Option<i64>) -> Result<(), StoreError>;
}

/// A transaction that writes. Dropped without a commit, it is rolled back.
#[async_trait]
pub(super) trait Transaction: Send {
    /// Runs a statement that gives rows.
    async fn query(&mut self, sql: Sql, args: Vec<Arg<'_>>) -> Result<Vec<Row>, StoreError>;

    /// Runs a statement and tells how many rows it changed.
    async fn execute(&mut self, sql: Sql, args: Vec<Arg<'_>>) -> Result<u64, StoreError>;

    /// Keeps the generation from being fenced until the transaction ends, and
    /// fails with `Fenced` if it is already.
    async fn hold_generation(&mut self, id: crate::model::GenerationId) -> Result<(), StoreError>;

    /// Waits for all transactions that hold the generation.
    async fn await_generation(&mut self, id: crate::model::GenerationId) -> Result<(), StoreError>;

    /// Commits. After an error of kind `Unknown` the transaction may have taken
    /// effect.
    async fn commit(self: Box<Self>) -> Result<(), StoreError>;

    /// Rolls back.
    async fn rollback(self: Box<Self>) -> Result<(), StoreError>;
}
