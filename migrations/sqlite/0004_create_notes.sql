-- Notes: texts that are kept beside a session's log, and go with the session.

CREATE TABLE note (
    tenant     TEXT    NOT NULL,
    session_id TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    bytes      INTEGER NOT NULL, -- of the text
    updated_at INTEGER NOT NULL,
    -- Last, so that what comes before is read without it.
    body       TEXT    NOT NULL,
    PRIMARY KEY (tenant, session_id, name)
);
