-- What windows are made with besides the log: cuts, snips, summaries and pins, one
-- row for each time that it changed. A state belongs to the branch that its session
-- was on, and goes with it.

CREATE TABLE window_state (
    tenant     TEXT COLLATE "C"   NOT NULL,
    branch_id  TEXT COLLATE "C"   NOT NULL,
    number     BIGINT NOT NULL, -- counts a session's states from 1
    session_id TEXT COLLATE "C"   NOT NULL,
    version    BIGINT NOT NULL, -- of the session when it was recorded
    kind       TEXT   NOT NULL,
    state      TEXT   NOT NULL, -- JSON
    record     TEXT   NOT NULL, -- JSON: what is told of how it was made
    created_at BIGINT NOT NULL,
    PRIMARY KEY (tenant, branch_id, number)
);

-- One row for each session that a summary is being made for, or has been made for and
-- waits to take the place of what it is of. Whoever makes it holds the token.
CREATE TABLE pending_summary (
    tenant     TEXT COLLATE "C"   NOT NULL,
    session_id TEXT COLLATE "C"   NOT NULL,
    token      TEXT   NOT NULL,
    expires_at BIGINT NOT NULL, -- from then on another may be made
    body       TEXT,            -- JSON; null until it is made
    PRIMARY KEY (tenant, session_id)
);

-- The number of the session's newest state, 0 if there is none, how many tokens more
-- its window had then than its log, and how counted tokens compare with reported ones
-- in it.
ALTER TABLE head ADD COLUMN window_state BIGINT NOT NULL DEFAULT 0;
ALTER TABLE head ADD COLUMN window_offset BIGINT NOT NULL DEFAULT 0;
ALTER TABLE head ADD COLUMN calibration TEXT; -- JSON
