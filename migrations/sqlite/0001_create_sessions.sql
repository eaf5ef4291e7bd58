-- Sessions, branches, turns, journal and segments. Times are microseconds
-- since the epoch. The tenant leads every key.

CREATE TABLE session (
    tenant      TEXT   NOT NULL,
    session_id  TEXT   NOT NULL,
    path        TEXT   NOT NULL,
    config      TEXT   NOT NULL, -- JSON
    created_at  INTEGER NOT NULL,
    PRIMARY KEY (tenant, session_id)
) WITHOUT ROWID;
CREATE INDEX session_by_time ON session (tenant, created_at, session_id);

CREATE TABLE session_label (
    tenant      TEXT NOT NULL,
    label_key   TEXT NOT NULL,
    label_value TEXT NOT NULL,
    session_id  TEXT NOT NULL,
    PRIMARY KEY (tenant, session_id, label_key)
) WITHOUT ROWID;
CREATE INDEX session_label_by_value ON session_label (tenant, label_key, label_value, session_id);

-- What changes with every turn: small, and no index but the key (see the Postgres
-- side).
CREATE TABLE head (
    tenant          TEXT   NOT NULL,
    session_id      TEXT   NOT NULL,
    deleted         INTEGER NOT NULL, -- 1 for the tombstone that keeps the id taken
    version         INTEGER NOT NULL,
    branch_id       TEXT   NOT NULL,
    receipt         BLOB   NOT NULL, -- the newest turn's
    config_revision INTEGER NOT NULL,
    window_revision INTEGER NOT NULL,
    preamble_revision INTEGER NOT NULL, -- 0 if there is none
    preamble_tokens INTEGER NOT NULL,
    journal_bytes   INTEGER NOT NULL,
    fence           INTEGER NOT NULL, -- raised by who reads back a commit, so that it cannot come later
    updated_at      INTEGER NOT NULL,
    PRIMARY KEY (tenant, session_id)
) WITHOUT ROWID;

CREATE TABLE preamble (
    tenant        TEXT   NOT NULL,
    session_id    TEXT   NOT NULL,
    revision      INTEGER NOT NULL,
    since_version INTEGER NOT NULL,
    tokens        INTEGER NOT NULL,
    payload       BLOB   NOT NULL,
    PRIMARY KEY (tenant, session_id, revision)
) WITHOUT ROWID;

CREATE TABLE branch (
    tenant           TEXT   NOT NULL,
    branch_id        TEXT   NOT NULL,
    session_id       TEXT   NOT NULL,
    parent_branch_id TEXT,
    base_version     INTEGER NOT NULL,
    base_seq         INTEGER NOT NULL,
    first_version    INTEGER NOT NULL,
    sealed_seq       INTEGER NOT NULL,
    sealed_version   INTEGER NOT NULL,
    created_at       INTEGER NOT NULL,
    PRIMARY KEY (tenant, branch_id)
) WITHOUT ROWID;
CREATE INDEX branch_by_session ON branch (tenant, session_id);
CREATE INDEX branch_by_parent ON branch (tenant, parent_branch_id);

CREATE TABLE turn (
    tenant         TEXT   NOT NULL,
    branch_id      TEXT   NOT NULL,
    version        INTEGER NOT NULL,
    session_id     TEXT   NOT NULL,
    kind           TEXT   NOT NULL,
    base_version   INTEGER NOT NULL,
    first_seq      INTEGER NOT NULL,
    last_seq       INTEGER NOT NULL,
    request_id     TEXT   NOT NULL,
    request_digest BLOB   NOT NULL,
    entries_digest BLOB   NOT NULL,
    receipt    BLOB   NOT NULL,
    prefix_digest  BLOB   NOT NULL,
    calls          TEXT   NOT NULL, -- JSON
    tokens         INTEGER NOT NULL,
    log_tokens     INTEGER NOT NULL,
    payload_bytes  INTEGER NOT NULL,
    report         TEXT,            -- JSON: usage, score, step kind
    reply          TEXT   NOT NULL, -- JSON
    created_at     INTEGER NOT NULL,
    PRIMARY KEY (tenant, branch_id, version)
) WITHOUT ROWID;
-- The tenant last: Postgres, while it has no statistics, would take this index
-- for lookups by the primary key, whose first column it would have in common.
CREATE UNIQUE INDEX turn_by_request ON turn (session_id, request_id, tenant);

CREATE TABLE journal (
    tenant     TEXT   NOT NULL,
    branch_id  TEXT   NOT NULL,
    version    INTEGER NOT NULL,
    first_seq  INTEGER NOT NULL,
    last_seq   INTEGER NOT NULL,
    raw_bytes  INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    -- Last, so that what comes before is read without it.
    body       BLOB   NOT NULL,
    PRIMARY KEY (tenant, branch_id, version)
) WITHOUT ROWID;

CREATE TABLE segment (
    tenant        TEXT   NOT NULL,
    branch_id     TEXT   NOT NULL,
    first_version INTEGER NOT NULL,
    last_version  INTEGER NOT NULL,
    first_seq     INTEGER NOT NULL,
    last_seq      INTEGER NOT NULL,
    blob_key      TEXT   NOT NULL,
    sha256        BLOB   NOT NULL,
    stored_bytes  INTEGER NOT NULL,
    raw_bytes     INTEGER NOT NULL,
    format        INTEGER NOT NULL,
    created_at    INTEGER NOT NULL,
    PRIMARY KEY (tenant, branch_id, first_version)
) WITHOUT ROWID;
CREATE UNIQUE INDEX segment_by_key ON segment (blob_key); -- for the sweep

-- The newest manifest of each session.
CREATE TABLE manifest (
    tenant     TEXT   NOT NULL,
    session_id TEXT   NOT NULL,
    blob_key   TEXT   NOT NULL,
    version    INTEGER NOT NULL,
    PRIMARY KEY (tenant, session_id)
) WITHOUT ROWID;
CREATE UNIQUE INDEX manifest_by_key ON manifest (blob_key);

-- Blobs that are to be erased once no reader can hold their keys.
CREATE TABLE tombstone (
    tenant     TEXT   NOT NULL,
    blob_key   TEXT   NOT NULL,
    session_id TEXT   NOT NULL,
    not_before INTEGER NOT NULL,
    PRIMARY KEY (tenant, blob_key)
) WITHOUT ROWID;
CREATE INDEX tombstone_by_time ON tombstone (not_before, blob_key);
CREATE INDEX tombstone_by_key ON tombstone (blob_key);
CREATE INDEX tombstone_by_session ON tombstone (tenant, session_id);

-- Receipts of deletions, kept for ever.
CREATE TABLE deletion (
    tenant     TEXT   NOT NULL,
    session_id TEXT   NOT NULL,
    deleted_at INTEGER NOT NULL,
    in_ledger  INTEGER NOT NULL, -- 1 once the bucket's ledger has it
    erased_at  INTEGER,
    PRIMARY KEY (tenant, session_id)
) WITHOUT ROWID;
CREATE INDEX deletion_open ON deletion (deleted_at) WHERE erased_at IS NULL;

-- One row for each process that may name blobs, renewed while it lives.
CREATE TABLE writer_generation (
    generation  INTEGER PRIMARY KEY AUTOINCREMENT,
    fenced      INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    fenced_at   INTEGER
);

-- Keys that all replicas share.
CREATE TABLE service_secret (
    name   TEXT  NOT NULL PRIMARY KEY,
    secret BLOB  NOT NULL
) WITHOUT ROWID;
