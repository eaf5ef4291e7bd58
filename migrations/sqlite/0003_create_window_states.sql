-- What windows are made with besides the log: cuts, snips, summaries and pins, one
-- row for each time that it changed. A state belongs to the branch that its session
-- was on, and goes with it.

CREATE TABLE window_state (
    tenant     TEXT    NOT NULL,
    branch_id  TEXT    NOT NULL,
    number     INTEGER NOT NULL, -- counts a session's states from 1
    session_id TEXT    NOT NULL,
    version    INTEGER NOT NULL, -- of the session when it was recorded
    kind       TEXT    NOT NULL,
    state      TEXT    NOT NULL, -- JSON
    record     TEXT    NOT NULL, -- JSON: what is told of how it was made
    created_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, branch_id, number)
) WITHOUT ROWID;

-- One row for each session that a summary is being made for, or has been made for and
-- waits to take the place of what it is of. Whoever makes it holds the token.
CREATE TABLE pending_summary (
    tenant     TEXT    NOT NULL,
    session_id TEXT    NOT NULL,
    token      TEXT    NOT NULL,
    expires_at INTEGER NOT NULL, -- from then on another may be made
    body       TEXT,            -- JSON; null until it is made
    PRIMARY KEY (tenant, session_id)
) WITHOUT ROWID;

-- The number of the session's newest state, 0 if there is none, how many tokens more
-- its window had then than its log, and how counted tokens compare with reported ones
-- in it.
ALTER TABLE head ADD COLUMN window_state INTEGER NOT NULL DEFAULT 0;
ALTER TABLE head ADD COLUMN window_offset INTEGER NOT NULL DEFAULT 0;
ALTER TABLE head ADD COLUMN calibration TEXT; -- JSON
