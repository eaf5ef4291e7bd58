-- Tool outputs that are kept whole outside the transcript. An output belongs to
-- the branch that its session was on when it was stored, and goes with it.

CREATE TABLE output (
    tenant       TEXT COLLATE "C"   NOT NULL,
    output_id    TEXT COLLATE "C"   NOT NULL,
    branch_id    TEXT COLLATE "C"   NOT NULL,
    version      BIGINT NOT NULL, -- newest turn when it was stored
    tool_call_id TEXT   NOT NULL,
    tool_name    TEXT   NOT NULL,
    content_type TEXT   NOT NULL,
    bytes        BIGINT NOT NULL,
    characters   BIGINT NOT NULL,
    lines        BIGINT NOT NULL,
    sha256       BYTEA  NOT NULL, -- of the content
    blob_key     TEXT COLLATE "C",            -- null while it is in output_held
    stored_bytes BIGINT NOT NULL,
    tail_at      BIGINT NOT NULL,
    format       BIGINT NOT NULL,
    created_at   BIGINT NOT NULL,
    -- Canonical digests of the entry with its preview, as stored and as received; null
    -- if no persist put the preview there.
    stored_entry_digest   BYTEA,
    received_entry_digest BYTEA,
    PRIMARY KEY (tenant, output_id)
);
CREATE INDEX output_by_branch ON output (tenant, branch_id, output_id);
CREATE UNIQUE INDEX output_by_key ON output (blob_key); -- for the sweep

-- Blobs of outputs that wait for the object store.
CREATE TABLE output_held (
    tenant    TEXT COLLATE "C"  NOT NULL,
    output_id TEXT COLLATE "C"  NOT NULL,
    branch_id TEXT COLLATE "C"  NOT NULL,
    body      BYTEA NOT NULL,
    PRIMARY KEY (tenant, output_id)
);
CREATE INDEX output_held_by_branch ON output_held (tenant, branch_id);
-- The body is compressed already.
ALTER TABLE output_held ALTER COLUMN body SET STORAGE EXTERNAL;
