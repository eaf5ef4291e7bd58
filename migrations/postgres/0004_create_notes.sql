-- Notes: texts that are kept beside a session's log, and go with the session.

CREATE TABLE note (
    tenant     TEXT COLLATE "C"   NOT NULL,
    session_id TEXT COLLATE "C"   NOT NULL,
    name       TEXT COLLATE "C"   NOT NULL,
    bytes      BIGINT NOT NULL, -- of the text
    updated_at BIGINT NOT NULL,
    -- Last, so that what comes before is read without it.
    body       TEXT   NOT NULL,
    PRIMARY KEY (tenant, session_id, name)
);
