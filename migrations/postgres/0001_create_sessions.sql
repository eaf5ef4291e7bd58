-- Sessions, branches, turns, journal and segments. Times are microseconds
-- since the epoch. The tenant leads every key.

CREATE TABLE session (
    tenant      TEXT COLLATE "C"   NOT NULL,
    session_id  TEXT COLLATE "C"   NOT NULL,
    path        TEXT   NOT NULL,
    config      TEXT   NOT NULL, -- JSON
    created_at  BIGINT NOT NULL,
    PRIMARY KEY (tenant, session_id)
);
CREATE INDEX session_by_time ON session (tenant, created_at, session_id);

CREATE TABLE session_label (
    tenant      TEXT COLLATE "C" NOT NULL,
    label_key   TEXT COLLATE "C" NOT NULL,
    label_value TEXT COLLATE "C" NOT NULL,
    session_id  TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant, session_id, label_key)
);
CREATE INDEX session_label_by_value ON session_label (tenant, label_key, label_value, session_id);

-- What changes with every turn: small, and no index but the key, so that
-- Postgres updates it in place.
CREATE TABLE head (
    tenant          TEXT COLLATE "C"   NOT NULL,
    session_id      TEXT COLLATE "C"   NOT NULL,
    deleted         BIGINT NOT NULL, -- 1 for the tombstone that keeps the id taken
    version         BIGINT NOT NULL,
    branch_id       TEXT COLLATE "C"   NOT NULL,
    receipt         BYTEA  NOT NULL, -- the newest turn's
    config_revision BIGINT NOT NULL,
    window_revision BIGINT NOT NULL,
    preamble_revision BIGINT NOT NULL, -- 0 if there is none
    preamble_tokens BIGINT NOT NULL,
    journal_bytes   BIGINT NOT NULL,
    fence           BIGINT NOT NULL, -- raised by who reads back a commit, so that it cannot come later
    updated_at      BIGINT NOT NULL,
    PRIMARY KEY (tenant, session_id)
) WITH (fillfactor = 50);

CREATE TABLE preamble (
    tenant        TEXT COLLATE "C"   NOT NULL,
    session_id    TEXT COLLATE "C"   NOT NULL,
    revision      BIGINT NOT NULL,
    since_version BIGINT NOT NULL,
    tokens        BIGINT NOT NULL,
    payload       BYTEA  NOT NULL,
    PRIMARY KEY (tenant, session_id, revision)
);

CREATE TABLE branch (
    tenant           TEXT COLLATE "C"   NOT NULL,
    branch_id        TEXT COLLATE "C"   NOT NULL,
    session_id       TEXT COLLATE "C"   NOT NULL,
    parent_branch_id TEXT COLLATE "C",
    base_version     BIGINT NOT NULL,
    base_seq         BIGINT NOT NULL,
    first_version    BIGINT NOT NULL,
    sealed_seq       BIGINT NOT NULL,
    sealed_version   BIGINT NOT NULL,
    created_at       BIGINT NOT NULL,
    PRIMARY KEY (tenant, branch_id)
) WITH (fillfactor = 70);
CREATE INDEX branch_by_session ON branch (tenant, session_id);
CREATE INDEX branch_by_parent ON branch (tenant, parent_branch_id);

CREATE TABLE turn (
    tenant         TEXT COLLATE "C"   NOT NULL,
    branch_id      TEXT COLLATE "C"   NOT NULL,
    version        BIGINT NOT NULL,
    session_id     TEXT COLLATE "C"   NOT NULL,
    kind           TEXT   NOT NULL,
    base_version   BIGINT NOT NULL,
    first_seq      BIGINT NOT NULL,
    last_seq       BIGINT NOT NULL,
    request_id     TEXT COLLATE "C"   NOT NULL,
    request_digest BYTEA  NOT NULL,
    entries_digest BYTEA  NOT NULL,
    receipt    BYTEA  NOT NULL,
    prefix_digest  BYTEA  NOT NULL,
    calls          TEXT   NOT NULL, -- JSON
    tokens         BIGINT NOT NULL,
    log_tokens     BIGINT NOT NULL,
    payload_bytes  BIGINT NOT NULL,
    report         TEXT,            -- JSON: usage, score, step kind
    reply          TEXT   NOT NULL, -- JSON
    created_at     BIGINT NOT NULL,
    PRIMARY KEY (tenant, branch_id, version)
);
-- The tenant last: Postgres, while it has no statistics, would take this index
-- for lookups by the primary key, whose first column it would have in common.
CREATE UNIQUE INDEX turn_by_request ON turn (session_id, request_id, tenant);

CREATE TABLE journal (
    tenant     TEXT COLLATE "C"   NOT NULL,
    branch_id  TEXT COLLATE "C"   NOT NULL,
    version    BIGINT NOT NULL,
    first_seq  BIGINT NOT NULL,
    last_seq   BIGINT NOT NULL,
    raw_bytes  BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    -- Last, so that what comes before is read without it.
    body       BYTEA  NOT NULL,
    PRIMARY KEY (tenant, branch_id, version)
) WITH (toast_tuple_target = 8160);
-- The body is compressed already.
ALTER TABLE journal ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE TABLE segment (
    tenant        TEXT COLLATE "C"   NOT NULL,
    branch_id     TEXT COLLATE "C"   NOT NULL,
    first_version BIGINT NOT NULL,
    last_version  BIGINT NOT NULL,
    first_seq     BIGINT NOT NULL,
    last_seq      BIGINT NOT NULL,
    blob_key      TEXT COLLATE "C"   NOT NULL,
    sha256        BYTEA  NOT NULL,
    stored_bytes  BIGINT NOT NULL,
    raw_bytes     BIGINT NOT NULL,
    format        BIGINT NOT NULL,
    created_at    BIGINT NOT NULL,
    PRIMARY KEY (tenant, branch_id, first_version)
);
CREATE UNIQUE INDEX segment_by_key ON segment (blob_key); -- for the sweep

-- The newest manifest of each session.
CREATE TABLE manifest (
    tenant     TEXT COLLATE "C"   NOT NULL,
    session_id TEXT COLLATE "C"   NOT NULL,
    blob_key   TEXT COLLATE "C"   NOT NULL,
    version    BIGINT NOT NULL,
    PRIMARY KEY (tenant, session_id)
);
CREATE UNIQUE INDEX manifest_by_key ON manifest (blob_key);

-- Blobs that are to be erased once no reader can hold their keys.
CREATE TABLE tombstone (
    tenant     TEXT COLLATE "C"   NOT NULL,
    blob_key   TEXT COLLATE "C"   NOT NULL,
    session_id TEXT COLLATE "C"   NOT NULL,
    not_before BIGINT NOT NULL,
    PRIMARY KEY (tenant, blob_key)
);
CREATE INDEX tombstone_by_time ON tombstone (not_before, blob_key);
CREATE INDEX tombstone_by_key ON tombstone (blob_key);
CREATE INDEX tombstone_by_session ON tombstone (tenant, session_id);

-- Receipts of deletions, kept for ever.
CREATE TABLE deletion (
    tenant     TEXT COLLATE "C"   NOT NULL,
    session_id TEXT COLLATE "C"   NOT NULL,
    deleted_at BIGINT NOT NULL,
    in_ledger  BIGINT NOT NULL, -- 1 once the bucket's ledger has it
    erased_at  BIGINT,
    PRIMARY KEY (tenant, session_id)
);
CREATE INDEX deletion_open ON deletion (deleted_at) WHERE erased_at IS NULL;

-- One row for each process that may name blobs, renewed while it lives.
CREATE TABLE writer_generation (
    generation  BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    fenced      BIGINT NOT NULL,
    lease_until BIGINT NOT NULL,
    fenced_at   BIGINT
);

-- Keys that all replicas share.
CREATE TABLE service_secret (
    name   TEXT COLLATE "C"  NOT NULL PRIMARY KEY,
    secret BYTEA NOT NULL
);
